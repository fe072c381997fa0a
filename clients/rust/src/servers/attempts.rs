//! The attempts at one request, until there is a reply or no time for another.
//!
//! An attempt goes to where the key is believed to be. What it learns there (the slot has moved, the server is no primary
//! any more, the connection is broken) is kept for the next one.

use super::{Line, Node, Servers, host_of, late, locked};
use crate::address::elsewhere;
use crate::error::Error;
use crate::settings::Settings;
use redis::{Cmd, Pipeline, Value};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::timeout;

/// Pauses before a repeat: the first, and the longest. Each is twice the one before, and up to half of it more.
const PAUSES: [Duration; 2] = [Duration::from_millis(8), Duration::from_millis(400)];

/// How often in a row a request is sent on without a pause.
const LEAPS: u32 = 4;

/// What a request is sent on.
pub(crate) enum Lane<'a> {
    Shared,
    /// A line that is already there is used again, if it leads to where the key is.
    Own(&'a mut Option<Line>),
}

/// Why an attempt has brought no reply.
pub(crate) struct Setback {
    error: Error,
    again: Again,
}

enum Again {
    Never,
    AtOnce,
    Later,
}

/// The attempts at one request.
pub(crate) struct Attempts<'a> {
    servers: &'a Servers,
    key: &'a [u8],
    /// Where ASK has sent the next attempt.
    ask: Option<Arc<Node>>,
    /// When the last one begins at the latest.
    pub(crate) until: Instant,
    pause: Duration,
    leaps: u32,
    /// Whether a request may have been carried out whose reply nobody has seen.
    pub(crate) is_uncertain: bool,
}

impl Servers {
    /// The attempts at a request about `key`. The last one begins before `until`.
    pub(crate) fn attempts<'a>(&'a self, key: &'a [u8], until: Instant) -> Attempts<'a> {
        let [pause, _] = PAUSES;
        Attempts { servers: self, key, ask: None, until, pause, leaps: 0, is_uncertain: false }
    }
}

impl Attempts<'_> {
    pub(crate) const fn settings(&self) -> &Settings {
        &self.servers.settings
    }

    /// Sends a request and waits for its reply, for `limit` at most, or without limit.
    pub(crate) async fn send(
        &mut self,
        lane: &mut Lane<'_>,
        cmd: &Cmd,
        limit: Option<Duration>,
    ) -> Result<Value, Setback> {
        let asking = self.ask.is_some();
        let finding = async {
            match self.ask.take() {
                Some(node) => Ok(node),
                None => self.servers.home(self.key).await,
            }
        };
        let found = timeout(self.servers.settings.response_limit, finding).await;
        let node = match found.unwrap_or_else(|_| Err(Error::silence(late()))) {
            Ok(node) => node,
            Err(error) => return Err(self.setback(None, error)),
        };
        let mut id = None;
        let connecting = async {
            match lane {
                Lane::Shared => {
                    let shared = self.servers.shared(&node).await?;
                    id = Some(shared.id);
                    Ok(shared.connection)
                }
                Lane::Own(line) => {
                    let there = line.take().filter(|line| Arc::ptr_eq(&line.node, &node));
                    let there = match there {
                        Some(there) => there,
                        None => self.servers.line(&node).await?,
                    };
                    Ok(line.insert(there).connection.clone())
                }
            }
        };
        // Others may be connecting, and who waits for them waits no longer than they do.
        let connected = timeout(self.servers.settings.response_limit, connecting).await;
        let mut connection = match connected.unwrap_or_else(|_| Err(Error::silence(late()))) {
            Ok(connection) => connection,
            Err(error) => return Err(self.setback(Some(&node), error)),
        };
        let sending = async {
            if !asking {
                return connection.send_packed_command(cmd).await;
            }
            let mut both = Pipeline::new();
            both.cmd("ASKING").add_command(cmd.clone());
            let replies = connection.send_packed_commands(&both, 0, 2).await?;
            replies.into_iter().nth(1).ok_or_else(late)
        };
        let replying = async {
            match limit {
                Some(limit) => timeout(limit, sending).await.unwrap_or_else(|_| Err(late())),
                None => sending.await,
            }
        };
        let reply = match lane {
            Lane::Shared => replying.await,
            Lane::Own(_) => tokio::select! {
                biased;
                reply = replying => reply,
                error = self.servers.silence(&node) => Err(error),
            },
        };
        let error = match reply {
            Ok(Value::ServerError(said)) => Error::said(&said),
            Ok(reply) => {
                self.is_uncertain = false;
                return Ok(reply);
            }
            Err(error) => Error::silence(error),
        };
        let is_silent = matches!(error, Error::Unreachable(_));
        self.is_uncertain |= is_silent;
        if is_silent || is_no_primary(&error) {
            if let Lane::Own(line) = lane {
                **line = None;
            }
            if let Some(id) = id {
                node.forget(id).await;
            }
        }
        Err(self.setback(Some(&node), error))
    }

    /// What to make of an error, and what it says of where the key is.
    pub(super) fn setback(&mut self, node: Option<&Arc<Node>>, error: Error) -> Setback {
        let is_silent = matches!(error, Error::Unreachable(_));
        let again = match error.code() {
            None if is_silent => Again::Later,
            None => Again::Never,
            Some("MOVED" | "ASK") => self.redirect(node, &error),
            Some(_) if passes(&error) => Again::Later,
            // A request of this very caller has overtaken it. What was asked for is still to be had.
            Some("SUPERSEDED") => Again::Later,
            Some(_) => Again::Never,
        };
        if is_silent || is_no_primary(&error) {
            node.inspect(|node| self.servers.leave(node));
        }
        if is_set_aside(&error) {
            node.inspect(|node| self.servers.doubt(node));
        }
        Setback { error, again }
    }

    /// Notes where a redirection leads: `3999 127.0.0.1:6381`.
    fn redirect(&mut self, from: Option<&Arc<Node>>, error: &Error) -> Again {
        let (Error::Server { code, message }, Some(from)) = (error, from) else { return Again::Never };
        let target = message.split_once(' ').and_then(|(slot, address)| {
            let (host, port) = address.rsplit_once(':')?;
            Some((slot.parse::<u16>().ok()?, host, port.parse::<u16>().ok()?))
        });
        let Some((slot, host, port)) = target else { return Again::Never };
        let node = self.servers.node(elsewhere(&from.info, host_of(Some(host), &from.info), port));
        if code == "ASK" {
            self.ask = Some(node);
        } else {
            locked(&self.servers.homes).insert(slot, node);
        }
        Again::AtOnce
    }

    /// Waits until the request may be sent again.
    ///
    /// # Errors
    /// What has set it back, where another attempt would not help or there is no time for one.
    pub(crate) async fn after(&mut self, setback: Setback) -> Result<(), Error> {
        let Setback { error, again } = setback;
        self.leaps += 1;
        match again {
            Again::Never => Err(error),
            Again::AtOnce if self.leaps <= LEAPS => Ok(()),
            Again::AtOnce | Again::Later => {
                self.leaps = 0;
                let [_, longest] = PAUSES;
                let pause = self.pause.mul_f64(1.0 + fastrand::f64() / 2.0);
                self.pause = (self.pause * 2).min(longest);
                if Instant::now() + pause >= self.until {
                    return Err(error);
                }
                tokio::time::sleep(pause).await;
                Ok(())
            }
        }
    }
}

/// Whether it is told by a server that is a replica. A new connection may lead to another one.
fn is_no_primary(error: &Error) -> bool {
    matches!(error.code(), Some("READONLY" | "UNBLOCKED"))
}

/// Whether it is told by a server whose place another one may have taken, though it has not heard of that.
fn is_set_aside(error: &Error) -> bool {
    matches!(error.code(), Some("NOREPLICAS" | "LOADING" | "MASTERDOWN"))
}

/// Whether it is of a server that may be of use later.
pub(crate) fn passes(error: &Error) -> bool {
    match error.code() {
        None => matches!(error, Error::Unreachable(_)),
        Some("READONLY" | "UNBLOCKED" | "TRYAGAIN" | "CLUSTERDOWN" | "LOADING") => true,
        Some("MASTERDOWN" | "BUSY" | "NOREPLICAS") => true,
        Some(_) => false,
    }
}
