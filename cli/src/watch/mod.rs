//! `lockward watch`: reports changes of locks as they happen.
//!
//! A listener at each primary receives keyspace events and reads the locks that the events name. It compares each
//! reading of a lock with the previous reading, and prints the changes. The main thread looks for new primaries.
//!
//! If the output is blocked, the listeners stop reading, and the servers close the connections when their output buffers
//! reach `client-output-buffer-limit pubsub`. Then `watch` reports the loss of each connection and connects again.

mod fact;
mod history;
mod listener;
mod options;
mod published;

use std::collections::HashMap;
use std::io;
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread;

use clap::Args;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag::register_conditional_shutdown;

use crate::failure::Failure;
use crate::primaries::Servers;
use crate::server::{Server, ask_all};
use fact::{Fact, What};
use listener::Listener;
use options::Options;

/// How often to look for other primaries, and to connect to those that did not answer, in milliseconds.
const LOOK_MS: u16 = 1_000;

/// Show changes of locks as they happen
///
/// watch prints one line for each change, with the owner and the token: acquired, released, lost (the lease is over) or
/// broken (deleted, renamed, overwritten). The first lines show the locks that are held at the start. watch
/// continues after a failover or a restart of a server, and says that events may have been missed. Ctrl-C ends watch.
#[derive(Args)]
pub(crate) struct Watch {
    #[command(flatten)]
    options: Options,

    #[command(flatten)]
    servers: Servers,
}

impl Watch {
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        // Ctrl-C and a service manager end the program at once. No output is lost, because each line is written at once.
        for signal in [SIGINT, SIGTERM] {
            register_conditional_shutdown(signal, 0, Arc::new(AtomicBool::new(true)))?;
        }
        let Self { options, servers } = self;
        let options = Arc::new(options);
        let mut primaries = servers.primaries(&[])?;
        // The servers with a listener. The flag becomes false when the server is no primary any more. Then the
        // listener ends.
        let mut listening: HashMap<String, Arc<AtomicBool>> = HashMap::new();
        let (sender, lost) = channel();
        // The failures that the output has reported, by the address of the server.
        let mut reported = HashMap::new();
        let mut is_start = true;
        loop {
            listening.retain(|address, is_primary| {
                let stays = primaries.iter().any(|server| server.address() == address);
                is_primary.store(stays, Ordering::Relaxed);
                stays
            });
            for (address, failure) in lost.try_iter() {
                listening.remove(&address);
                options.tell_lost(address, &failure, &mut reported);
            }
            let missing = primaries.iter().filter(|server| !listening.contains_key(server.address()));
            let outcomes = connect(&options, missing.cloned().collect());
            let failures = || outcomes.iter().filter_map(|(_, outcome)| outcome.as_ref().err());
            if is_start && failures().count() == outcomes.len() {
                return Err(Failure::all(failures()));
            }
            for (address, outcome) in outcomes {
                match outcome {
                    Ok(listener) => {
                        if !is_start {
                            let reason =
                                format!("{address}: events may have been missed; its held locks follow");
                            options.tell(&Fact::of_server(What::Connected, reason));
                        }
                        reported.remove(&address);
                        listening.insert(address.clone(), listen(listener, address, sender.clone()));
                    }
                    Err(failure) => options.tell_lost(address, &failure, &mut reported),
                }
            }
            is_start = false;
            if output_closes()? {
                return Ok(ExitCode::SUCCESS);
            }
            // While no Sentinel or no node of a cluster answers, the known primaries stay.
            primaries = servers.primaries(&primaries).unwrap_or(primaries);
        }
    }
}

/// Connects to these servers at the same time. Returns the listener or the failure of each address.
fn connect(options: &Arc<Options>, servers: Vec<Server>) -> Vec<(String, Result<Listener, Failure>)> {
    let options = Arc::clone(options);
    let connect = move |server: &Server| {
        Ok((server.address().to_owned(), Listener::connect(server, Arc::clone(&options))))
    };
    ask_all(servers, connect).into_iter().flatten().collect()
}

/// Starts the thread of a listener. Returns the flag that ends the thread. If the connection breaks, sends the failure.
fn listen(listener: Listener, address: String, lost: Sender<(String, Failure)>) -> Arc<AtomicBool> {
    let is_primary = Arc::new(AtomicBool::new(true));
    let flag = Arc::clone(&is_primary);
    thread::spawn(move || {
        if let Err(failure) = listener.run(&flag)
            && flag.load(Ordering::Relaxed)
        {
            let _ = lost.send((address, failure));
        }
    });
    is_primary
}

/// Waits for [`LOOK_MS`]. Returns `true` as soon as the reader of the output closes it.
fn output_closes() -> io::Result<bool> {
    let out = io::stdout();
    let mut watched = [PollFd::new(out.as_fd(), PollFlags::empty())];
    Ok(poll(&mut watched, PollTimeout::from(LOOK_MS))? > 0)
}
