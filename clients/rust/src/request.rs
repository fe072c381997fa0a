//! Sends one request until there is a reply, or no time for another attempt.
//!
//! Each attempt goes to the node that is known to serve the key. What its failure tells (the slot has moved, the server is
//! a replica now, the connection is broken) is noted for the next attempt, and for other requests.

use crate::commands::OwnedKey;
use crate::error::Error;
use crate::servers::{Inner, Node, OwnConnection, SharedConnection, timed_out};
use crate::time::{FAR_FUTURE, Pauses, from_now, until};
use redis::{Cmd, ErrorKind, Pipeline, RedisError, RedisResult, Value};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::{sleep, timeout};

/// How many redirects in a row are followed without a pause.
const MAX_REDIRECTS: u32 = 5;

/// What a request is sent on.
pub(crate) enum Via<'a> {
    /// The connection that all short requests share.
    Shared,
    /// A connection for this caller alone. It is opened when it is needed, and used again while its node serves the key.
    Own(&'a mut Option<OwnConnection>),
}

/// The attempts of one call.
pub(crate) struct Request<'a> {
    inner: &'a Arc<Inner>,
    pub(crate) name: Arc<OwnedKey>,
    slot: u16,
    /// No attempt lasts longer than this.
    pub(crate) deadline: Instant,
    /// The call fails if no server answers until then.
    pub(crate) patience_end: Instant,
    /// Each answer starts the patience again.
    pub(crate) restarts_patience: bool,
    /// It is not sent again when a server may have carried it out.
    pub(crate) runs_once: bool,
    /// A command that follows in the same pipeline, how long it may take, and its reply.
    pub(crate) then: Option<(Cmd, Duration)>,
    pub(crate) then_reply: Option<Value>,
    pauses: Pauses,
    failures: u32,
    redirects: u32,
    /// A server has answered during this call.
    pub(crate) is_answered: bool,
    /// A server may have carried out a request of this call without a reply, or may do so yet.
    pub(crate) may_have_run: bool,
    /// Where ASK has sent the next attempt.
    asking: Option<Arc<Node>>,
    /// The node and the shared connection of the last attempt, and whether it was sent.
    node: Option<Arc<Node>>,
    pub(crate) shared: Option<SharedConnection>,
    is_sent: bool,
}

impl<'a> Request<'a> {
    /// A request with the client's patience.
    pub(crate) fn new(inner: &'a Arc<Inner>, name: &Arc<OwnedKey>) -> Self {
        Self {
            inner,
            name: Arc::clone(name),
            slot: inner.slot(&name.key),
            deadline: from_now(FAR_FUTURE),
            patience_end: from_now(inner.settings.patience),
            restarts_patience: false,
            runs_once: false,
            then: None,
            then_reply: None,
            pauses: Pauses::new(50, 1_000),
            failures: 0,
            redirects: 0,
            is_answered: false,
            may_have_run: false,
            asking: None,
            node: None,
            shared: None,
            is_sent: false,
        }
    }

    /// Sends a request until there is a reply. Each attempt has the response limit.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub(crate) async fn repeat(&mut self, cmd: &Cmd) -> Result<Value, Error> {
        loop {
            if let Some(reply) = self.send(&mut Via::Shared, cmd, self.inner.settings.response_limit).await? {
                return Ok(reply);
            }
        }
    }

    /// Sends a request once, and waits at most `limit` for the reply. `None`: there was none, and the pause before the next
    /// attempt is over.
    ///
    /// # Errors
    /// [`Error::Refused`] with an error of the server that repeating does not cure; [`Error::Unreachable`] when there is no
    /// time for another attempt.
    pub(crate) async fn send(
        &mut self,
        via: &mut Via<'_>,
        cmd: &Cmd,
        limit: Duration,
    ) -> Result<Option<Value>, Error> {
        let limit = limit.min(until(self.deadline.min(self.patience_end)));
        let limit = self.then.as_ref().map_or(limit, |(_, longer)| limit.saturating_add(*longer));
        let may_have_run = self.may_have_run;
        self.is_sent = false;
        let replied = timeout(limit, self.exchange(via, cmd)).await.unwrap_or_else(|_| Err(timed_out()));
        let is_answer =
            replied.as_ref().map_or_else(|error| error.code().is_some(), |_| true) && self.is_sent;
        if is_answer {
            self.is_answered = true;
            self.may_have_run = may_have_run;
            if self.restarts_patience {
                self.patience_end = from_now(self.inner.settings.patience);
            }
        }
        match replied {
            Ok(reply) => {
                self.failures = 0;
                self.redirects = 0;
                self.pauses = Pauses::new(50, 1_000);
                Ok(Some(reply))
            }
            Err(error) if is_answer => self.handle_error(&error).await,
            Err(error) => self.handle_silence(via, &error).await,
        }
    }

    async fn exchange(&mut self, via: &mut Via<'_>, cmd: &Cmd) -> RedisResult<Value> {
        let asking = self.asking.take();
        let is_asking = asking.is_some();
        self.shared = None;
        self.node = None;
        let node = match asking {
            Some(node) => node,
            None => self.inner.node_for(self.slot).await?,
        };
        self.node = Some(Arc::clone(&node));
        let mut connection = match via {
            Via::Shared => self.shared.insert(self.inner.shared(&node)).clone().await?,
            Via::Own(Some(own)) if Arc::ptr_eq(&own.node, &node) => own.connection.clone(),
            Via::Own(own) => own.insert(self.inner.own_connection(node).await?).connection.clone(),
        };
        self.is_sent = true;
        self.may_have_run = true;
        let reply = if is_asking || self.then.is_some() {
            let mut pipeline = Pipeline::new();
            if is_asking {
                pipeline.cmd("ASKING");
            }
            pipeline.add_command(cmd.clone());
            if let Some((then, _)) = &self.then {
                pipeline.add_command(then.clone());
            }
            let count = pipeline.len();
            let replies = connection.send_packed_commands(&pipeline, 0, count).await?;
            let mut replies = replies.into_iter().skip(usize::from(is_asking));
            let reply = replies.next();
            self.then_reply = replies.next();
            reply.ok_or_else(timed_out)?
        } else {
            connection.send_packed_command(cmd).await?
        };
        if let Value::ServerError(error) = reply { Err(error.into()) } else { Ok(reply) }
    }

    /// A server has replied with an error.
    async fn handle_error(&mut self, error: &RedisError) -> Result<Option<Value>, Error> {
        let Some(node) = self.node.take() else { return Err(Error::refused(self.name.shown(), error)) };
        match error.code().unwrap_or_default() {
            "MOVED" | "ASK" => {
                if let Some((slot, target)) = self.inner.redirect(error, &node) {
                    if error.code() == Some("ASK") {
                        self.asking = Some(target);
                    } else {
                        self.inner.assign(slot, target);
                    }
                }
                self.redirects += 1;
                if self.redirects <= MAX_REDIRECTS {
                    return Ok(None);
                }
            }
            "READONLY" | "UNBLOCKED" | "LOADING" | "MASTERDOWN" => self.inner.forget_routes_to(&node),
            "CLUSTERDOWN" | "TRYAGAIN" | "SUPERSEDED" => {}
            "NOREPLICAS" => {
                // Another server may have replaced this one without its knowledge.
                self.inner.forget_routes_to(&node);
                return Err(Error::refused(self.name.shown(), error));
            }
            _ => return Err(Error::refused(self.name.shown(), error)),
        }
        self.pause(error).await
    }

    /// There was no reply: the server cannot be reached, or its reply is late.
    async fn handle_silence(
        &mut self,
        via: &mut Via<'_>,
        error: &RedisError,
    ) -> Result<Option<Value>, Error> {
        if !self.is_sent
            && (matches!(
                error.kind(),
                ErrorKind::AuthenticationFailed
                    | ErrorKind::InvalidClientConfig
                    | ErrorKind::RESP3NotSupported
                    | ErrorKind::MasterNameNotFoundBySentinel
            ) || matches!(error.code(), Some("WRONGPASS" | "NOAUTH" | "NOPERM")))
        {
            return Err(Error::refused(self.name.shown(), error));
        }
        if let Via::Own(own) = via {
            **own = None;
        }
        if let Some(node) = self.node.take() {
            // A connection that is being opened has a limit of its own.
            let failed = self.shared.as_ref().filter(|shared| self.is_sent || shared.peek().is_some());
            self.inner.note_silence(&node, failed);
        }
        if self.runs_once && self.is_sent {
            return Err(self.unreachable(error));
        }
        self.pause(error).await
    }

    fn unreachable(&self, error: &RedisError) -> Error {
        Error::Unreachable { key: self.name.shown(), cause: error.to_string() }
    }

    /// Waits until the request may be sent again: the first time at once, as the connection may have been cut while it was
    /// idle.
    async fn pause(&mut self, error: &RedisError) -> Result<Option<Value>, Error> {
        self.failures += 1;
        let end = self.deadline.min(self.patience_end);
        if self.failures > 1 {
            // Up to half longer, so that clients that failed together do not come back together.
            let pause = self.pauses.next_pause().mul_f64(1.0 + fastrand::f64() / 2.0);
            sleep(pause.min(until(end))).await;
        }
        if until(end).is_zero() {
            return Err(self.unreachable(error));
        }
        Ok(None)
    }
}
