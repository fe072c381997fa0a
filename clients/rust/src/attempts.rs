//! Sends one request until there is a reply, or no time for another attempt.
//!
//! Each attempt goes to the node that is known to serve the key. What its failure tells (the slot has moved, the server is
//! a replica now, the connection is broken) is noted for the next attempt, and for other requests.

use crate::cluster::redirect;
use crate::commands::check_reply;
use crate::connections::{ConnectionKind, Node, SharedConnection};
use crate::error::Error;
use crate::servers::Servers;
use crate::settings::Settings;
use crate::time::{Pauses, timed_out, within};
use futures_util::future::TryFutureExt;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, Value};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How many redirects in a row are followed without a pause.
const MAX_REDIRECTS: u32 = 4;

/// Why an attempt has brought no reply, and whether to send the request again.
pub(crate) struct AttemptError {
    error: Error,
    retry: Retry,
}

enum Retry {
    Never,
    AtOnce,
    AfterPause,
}

/// The attempts at one request.
pub(crate) struct Attempts<'a> {
    servers: &'a Servers,
    key: &'a [u8],
    /// Where ASK has sent the next attempt.
    asking_node: Option<Arc<Node>>,
    /// No attempt begins after this.
    pub(crate) deadline: Instant,
    pauses: Pauses,
    redirects: u32,
    /// Whether a server may have carried out an attempt whose reply was lost.
    pub(crate) may_have_run: bool,
}

impl Servers {
    /// The attempts at a request about `key`. None begins after `deadline`.
    pub(crate) fn attempts<'a>(&'a self, key: &'a [u8], deadline: Instant) -> Attempts<'a> {
        Attempts {
            servers: self,
            key,
            asking_node: None,
            deadline,
            pauses: Pauses::new(8, 400),
            redirects: 0,
            may_have_run: false,
        }
    }
}

impl Attempts<'_> {
    pub(crate) const fn settings(&self) -> &Settings {
        &self.servers.settings
    }

    /// Sends a short request on the shared connection until there is a reply.
    ///
    /// # Errors
    /// As [`wait_to_retry`](Self::wait_to_retry).
    pub(crate) async fn request(&mut self, cmd: &Cmd) -> Result<Value, Error> {
        self.timed_request(cmd).await.map(|(_, reply)| reply)
    }

    /// Like [`request`](Self::request). Returns also when the attempt began that brought the reply.
    pub(crate) async fn timed_request(&mut self, cmd: &Cmd) -> Result<(Instant, Value), Error> {
        loop {
            let sent = Instant::now();
            if let Some(reply) = self.attempt(&mut ConnectionKind::Shared, cmd).await? {
                return Ok((sent, reply));
            }
        }
    }

    /// Sends a short request once. Returns `None` when it has failed and is to be sent again now.
    ///
    /// # Errors
    /// As [`wait_to_retry`](Self::wait_to_retry).
    pub(crate) async fn attempt(
        &mut self,
        kind: &mut ConnectionKind<'_>,
        cmd: &Cmd,
    ) -> Result<Option<Value>, Error> {
        let limit = self.settings().response_limit;
        match self.send(kind, cmd, Some(limit)).await {
            Ok(reply) => Ok(Some(reply)),
            Err(error) => self.wait_to_retry(error).await.map(|()| None),
        }
    }

    /// Sends a request and waits for its reply, for `limit` at most, or without limit.
    pub(crate) async fn send(
        &mut self,
        kind: &mut ConnectionKind<'_>,
        cmd: &Cmd,
        limit: Option<Duration>,
    ) -> Result<Value, AttemptError> {
        let is_asking = self.asking_node.is_some();
        let response_limit = self.settings().response_limit;
        let node = within(response_limit, self.find_node()).await;
        let node = node.map_err(|error| self.classify(None, error))?;
        // Another caller may be opening the shared connection already. This one waits no longer than for its own.
        let connected = within(response_limit, self.connect(&node, kind)).await;
        let (connection, shared) = connected.map_err(|error| self.classify(Some(&node), error))?;
        let exchange = async {
            let exchange = exchange(connection, cmd, is_asking);
            match limit {
                Some(limit) => within(limit, exchange).await,
                None => exchange.await,
            }
        };
        let reply = match kind {
            ConnectionKind::Shared => exchange.await,
            ConnectionKind::Dedicated(_) => tokio::select! {
                biased;
                reply = exchange => reply,
                error = self.servers.wait_until_gone(&node) => Err(error),
            },
        };
        let error = match reply {
            Ok(reply) => {
                self.may_have_run = false;
                return Ok(reply);
            }
            Err(error) => error,
        };
        self.may_have_run |= error.is_unreachable();
        if error.is_unreachable() || error.is_from_replica() {
            if let ConnectionKind::Dedicated(connection) = kind {
                **connection = None;
            }
            if let Some(shared) = shared {
                node.close_shared(&shared).await;
            }
        }
        Err(self.classify(Some(&node), error))
    }

    /// Like [`wait_to_retry`](Self::wait_to_retry), for a request that must not run twice.
    ///
    /// # Errors
    /// Also the error of an attempt that a server may have carried out.
    pub(crate) async fn wait_to_retry_unless_run(&mut self, attempt: AttemptError) -> Result<(), Error> {
        if self.may_have_run {
            return Err(attempt.error);
        }
        self.wait_to_retry(attempt).await
    }

    async fn find_node(&mut self) -> Result<Arc<Node>, Error> {
        match self.asking_node.take() {
            Some(node) => Ok(node),
            None => self.servers.node_for(self.key).await,
        }
    }

    /// A connection to `node`, and the shared one if it is that.
    async fn connect(
        &self,
        node: &Arc<Node>,
        kind: &mut ConnectionKind<'_>,
    ) -> Result<(MultiplexedConnection, Option<SharedConnection>), Error> {
        match kind {
            ConnectionKind::Shared => {
                let shared = node.shared(&self.servers.connector).await?;
                Ok((shared.connection.clone(), Some(shared)))
            }
            ConnectionKind::Dedicated(kept) => {
                let open = match kept.take().filter(|open| Arc::ptr_eq(&open.node, node)) {
                    Some(open) => open,
                    None => node.dedicated(&self.servers.connector).await?,
                };
                Ok((kept.insert(open).connection.clone(), None))
            }
        }
    }

    /// Decides whether to send the request again after an error, and notes what the error tells about `node`.
    pub(crate) fn classify(&mut self, node: Option<&Arc<Node>>, error: Error) -> AttemptError {
        let retry = match error.code() {
            Some("MOVED" | "ASK") => self.follow_redirect(node, &error),
            // Another request of the same owner has taken over the position in the queue. The lock is still to be had.
            Some("SUPERSEDED") => Retry::AfterPause,
            _ if error.is_transient() => Retry::AfterPause,
            _ => Retry::Never,
        };
        if let Some(node) = node {
            if error.is_unreachable() || error.is_from_replica() {
                self.servers.disconnect(node);
            }
            if error.may_be_from_old_primary() {
                self.servers.recheck(node);
            }
        }
        AttemptError { error, retry }
    }

    fn follow_redirect(&mut self, from: Option<&Arc<Node>>, error: &Error) -> Retry {
        let Some(redirect) = from.and_then(|from| redirect(error, &from.info)) else { return Retry::Never };
        let node = self.servers.node(redirect.node);
        if redirect.is_ask {
            self.asking_node = Some(node);
        } else {
            self.servers.assign(redirect.slot, node);
        }
        Retry::AtOnce
    }

    /// Waits until the request may be sent again.
    ///
    /// # Errors
    /// The error of the attempt, if another attempt cannot succeed or would begin after the deadline.
    pub(crate) async fn wait_to_retry(&mut self, attempt: AttemptError) -> Result<(), Error> {
        self.redirects += 1;
        match attempt.retry {
            Retry::Never => Err(attempt.error),
            Retry::AtOnce if self.redirects <= MAX_REDIRECTS => Ok(()),
            Retry::AtOnce | Retry::AfterPause => {
                self.redirects = 0;
                // Up to half longer, so that clients that failed together do not come back together.
                let pause = self.pauses.next_pause().mul_f64(1.0 + fastrand::f64() / 2.0);
                if Instant::now() + pause >= self.deadline {
                    return Err(attempt.error);
                }
                tokio::time::sleep(pause).await;
                Ok(())
            }
        }
    }
}

/// Sends a command, with ASKING before it where a redirect says so, and reads its reply.
async fn exchange(mut connection: MultiplexedConnection, cmd: &Cmd, is_asking: bool) -> Result<Value, Error> {
    if !is_asking {
        let reply = connection.send_packed_command(cmd).map_err(Error::from_redis).await?;
        return check_reply(reply);
    }
    let mut both = Pipeline::new();
    both.cmd("ASKING").add_command(cmd.clone());
    let replies = connection.send_packed_commands(&both, 0, 2).map_err(Error::from_redis).await?;
    replies.into_iter().nth(1).map_or_else(|| Err(timed_out()), check_reply)
}
