//! The threads that keep a listener at each primary.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use super::fact::{Fact, What};
use super::history::Occasion;
use super::listener::{Listener, Shared};
use crate::failure::Failure;
use crate::primaries::Servers;
use crate::server::{Server, ask_all};

/// How long to wait before the next attempt to reach a primary.
const RETRY: Duration = Duration::from_millis(500);

/// Starts a listener at each primary, and at each server that becomes a primary later. Fails if no primary can be watched,
/// or if a primary does not publish the needed events.
pub(super) fn start(servers: Servers, shared: Arc<Shared>) -> Result<(), Failure> {
    let primaries = servers.primaries()?;
    let connecting = Arc::clone(&shared);
    let connect = move |server: &Server| {
        Ok((server.address().to_owned(), Listener::connect(server, Arc::clone(&connecting))))
    };
    let ready: HashMap<String, Result<Listener, Failure>> =
        ask_all(primaries.clone(), connect).into_iter().flatten().collect();
    if let Some(command) = ready.values().flatten().find_map(|listener| listener.lacking.as_ref()) {
        return Err(Failure::new(command));
    }
    if !ready.values().any(Result::is_ok) {
        return Err(Failure::all(&ready.into_values().filter_map(Result::err).collect::<Vec<_>>()));
    }
    let ready = Arc::new(Mutex::new(ready));
    let watch_one = move |server: &Server, is_primary: &AtomicBool| {
        let ready = ready.lock().unwrap_or_else(PoisonError::into_inner).remove(server.address());
        watch(server, is_primary, ready, &shared);
    };
    thread::spawn(move || servers.at_each_primary(primaries, watch_one, drop));
    Ok(())
}

/// Watches a server for as long as it is a primary. `ready` is the outcome of the first attempt to connect, if there was
/// one.
fn watch(
    server: &Server,
    is_primary: &AtomicBool,
    mut ready: Option<Result<Listener, Failure>>,
    shared: &Arc<Shared>,
) {
    // Whether the output has already reported the lost connection.
    let mut is_reported = false;
    while is_primary.load(Ordering::Relaxed) {
        let outcome = match ready.take() {
            Some(connected) => connected.and_then(|listener| listener.run(Occasion::Start, is_primary)),
            None => Listener::connect(server, Arc::clone(shared)).and_then(|listener| {
                is_reported = false;
                let address = server.address();
                let reason = format!("{address}: events may have been missed; reading the locks again");
                shared.tell(Fact::of_server(What::Connected, reason));
                if let Some(command) = &listener.lacking {
                    shared.tell(Fact::of_server(What::EventsOff, command.clone()));
                }
                listener.run(Occasion::Reconnected, is_primary)
            }),
        };
        if let Err(failure) = outcome {
            if !is_reported {
                is_reported = true;
                let reason = format!("{failure}; events may be missed from now on");
                shared.tell(Fact::of_server(What::Disconnected, reason));
            }
            thread::sleep(RETRY);
        }
    }
}
