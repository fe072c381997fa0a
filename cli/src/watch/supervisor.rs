//! The threads that keep a listener at each primary.

use std::collections::HashMap;
use std::sync::Arc;
use std::thread;

use super::fact::{Fact, What};
use super::history::Occasion;
use super::listener::{Listener, Shared};
use crate::failure::Failure;
use crate::primaries::{Primary, RETRY, Servers};
use crate::server::{Server, ask_all};

/// Starts a listener at each primary, and at each server that becomes a primary later. Fails if no primary can be watched,
/// or if a primary does not publish the needed events.
pub(super) fn start(servers: Servers, shared: Arc<Shared>) -> Result<(), Failure> {
    let known = servers.primaries()?;
    let connecting = Arc::clone(&shared);
    let connect = move |server: &Server| {
        Ok((server.address().to_owned(), Listener::connect(server, Arc::clone(&connecting))))
    };
    let (connected, _) = ask_all(known.clone(), connect)?.all()?;
    let mut ready: HashMap<String, Result<Listener, Failure>> = connected.into_iter().collect();
    if let Some(command) = ready.values().flatten().find_map(Listener::lacking) {
        return Err(Failure::new(command));
    }
    if !ready.values().any(Result::is_ok) {
        return Err(Failure::all(&ready.into_values().filter_map(Result::err).collect::<Vec<_>>()));
    }
    servers.follow(known, move |found| {
        // If the search for primaries fails, the listeners at the known primaries still run.
        let Ok(primary) = found else { return };
        let ready = ready.remove(primary.server.address());
        let listening = Arc::clone(&shared);
        let thread = thread::Builder::new().name("listener".into());
        if let Err(error) = thread.spawn(move || watch(&primary, ready, &listening)) {
            shared.tell(Fact::of_server(What::Disconnected, error.to_string()));
        }
    })?;
    Ok(())
}

/// Watches a server for as long as it is a primary. `ready` is the outcome of the first attempt to connect, if there was
/// one.
fn watch(primary: &Primary, mut ready: Option<Result<Listener, Failure>>, shared: &Arc<Shared>) {
    // Whether the output has already reported the lost connection.
    let mut is_reported = false;
    while primary.is_current() {
        let outcome = match ready.take() {
            Some(connected) => connected.and_then(|listener| listener.run(Occasion::Start, primary)),
            None => Listener::connect(&primary.server, Arc::clone(shared)).and_then(|listener| {
                is_reported = false;
                let address = primary.server.address();
                let reason = format!("{address}: events may have been missed; reading the locks again");
                shared.tell(Fact::of_server(What::Connected, reason));
                if let Some(command) = listener.lacking() {
                    shared.tell(Fact::of_server(What::EventsOff, command.to_owned()));
                }
                listener.run(Occasion::Reconnected, primary)
            }),
        };
        if let Err(failure) = outcome {
            primary.note_failure();
            if !is_reported {
                is_reported = true;
                let reason = format!("{failure}; events may be missed from now on");
                shared.tell(Fact::of_server(What::Disconnected, reason));
            }
            thread::sleep(RETRY);
        }
    }
}
