//! The thread that finds the primaries, and keeps a listener at each primary.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};
use std::{io, thread};

use super::fact::{Fact, What};
use super::history::Occasion;
use super::listener::{Listener, Shared};
use crate::failure::Failure;
use crate::primaries::{self, ServerUrl};

/// How long to wait before the next attempt to reach a server.
const RETRY: Duration = Duration::from_millis(500);

/// How often to look for other primaries while all listeners run.
const LOOK: Duration = Duration::from_secs(5);

pub(super) struct Supervisor {
    url: ServerUrl,
    shared: Arc<Shared>,
    /// The flags that stop the listeners, by the addresses of their servers.
    running: HashMap<String, Arc<AtomicBool>>,
    /// The address and the outcome of each listener that has ended.
    endings: Receiver<(String, Result<(), Failure>)>,
    ending_sender: Sender<(String, Result<(), Failure>)>,
    /// Whether a primary may have no listener, because a listener or a search for primaries has failed.
    is_incomplete: bool,
}

impl Supervisor {
    /// Connects to all primaries and starts their listeners. Fails if a primary cannot be reached, or does not publish
    /// the needed events.
    pub(super) fn start(url: ServerUrl, shared: Arc<Shared>) -> Result<Self, Failure> {
        let (ending_sender, endings) = channel();
        let running = HashMap::new();
        let mut supervisor = Self { url, shared, running, endings, ending_sender, is_incomplete: false };
        let mut listeners = Vec::new();
        for info in primaries::find(&supervisor.url)? {
            let mut listener = Listener::connect(info, Arc::clone(&supervisor.shared))?;
            listener.check_rights()?;
            if let Some(command) = listener.lacking() {
                return Err(Failure::new(command));
            }
            listeners.push(listener);
        }
        for listener in listeners {
            supervisor.listen(listener, Occasion::Start)?;
        }
        Ok(supervisor)
    }

    fn listen(&mut self, listener: Listener, occasion: Occasion) -> io::Result<()> {
        let address = listener.address().to_owned();
        let stop = Arc::new(AtomicBool::new(false));
        let (flag, endings, name) = (Arc::clone(&stop), self.ending_sender.clone(), address.clone());
        thread::Builder::new().name("listener".into()).spawn(move || {
            let ending = listener.run(occasion, &flag);
            // The send fails only when the process ends.
            let _ = endings.send((name, ending));
        })?;
        self.running.insert(address, stop);
        Ok(())
    }

    /// Keeps a listener at each primary. Runs until the process ends.
    pub(super) fn run(mut self) {
        let mut looked = Instant::now();
        loop {
            let interval = if self.is_incomplete { RETRY } else { LOOK };
            let left = interval.saturating_sub(looked.elapsed());
            match self.endings.recv_timeout(left) {
                Ok((address, outcome)) => self.note_ending(&address, outcome),
                Err(RecvTimeoutError::Timeout) => {
                    looked = Instant::now();
                    self.look();
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn note_ending(&mut self, address: &str, outcome: Result<(), Failure>) {
        self.running.remove(address);
        if let Err(failure) = outcome {
            self.is_incomplete = true;
            let reason = format!("{address}: {failure}; events may be missed from now on");
            self.shared.tell(Fact::of_server(What::Disconnected, reason));
        }
    }

    /// Starts a listener at each primary that has none, and stops the listeners at other servers.
    fn look(&mut self) {
        match self.try_look() {
            Ok(()) => self.is_incomplete = false,
            Err(failure) => {
                // The watcher reports only the first failure. If `is_incomplete` is already true, an earlier look or
                // `note_ending` has reported a failure.
                if !self.is_incomplete {
                    let reason = format!("{failure}; trying again");
                    self.shared.tell(Fact::of_server(What::Disconnected, reason));
                }
                self.is_incomplete = true;
            }
        }
    }

    fn try_look(&mut self) -> Result<(), Failure> {
        let found = primaries::find(&self.url)?;
        let addresses: Vec<String> = found.iter().map(|info| info.addr().to_string()).collect();
        for (address, stop) in &self.running {
            stop.store(!addresses.contains(address), Ordering::Relaxed);
        }
        let mut failed = None;
        for (info, address) in found.into_iter().zip(addresses) {
            if self.running.contains_key(&address) {
                continue;
            }
            let connected = Listener::connect(info, Arc::clone(&self.shared)).and_then(|listener| {
                let reason = format!("{address}: events may have been missed; reading the locks again");
                self.shared.tell(Fact::of_server(What::Connected, reason));
                if let Some(command) = listener.lacking() {
                    self.shared.tell(Fact::of_server(What::EventsOff, command.to_owned()));
                }
                Ok(self.listen(listener, Occasion::Reconnected)?)
            });
            failed = connected.err().or(failed);
        }
        failed.map_or(Ok(()), Err)
    }
}
