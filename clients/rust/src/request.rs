//! Sends one request until there is a reply or no time for another attempt.
//!
//! Each attempt goes to the node that is known to serve the key. If an attempt fails, the client records the reason
//! (the slot has moved, the server is a replica now, the connection is broken) for the next attempt and for other
//! requests.

use crate::commands::OwnedKey;
use crate::error::Error;
use crate::servers::{Awaited, Inner, Node, timed_out, within};
use crate::time::{FAR_FUTURE, from_now, millis, pause_after, until};
use futures_util::future::FutureExt;
use redis::aio::MultiplexedConnection;
use redis::cluster_routing::Slot;
use redis::{Cmd, ErrorKind, RedisError, RedisResult, Value, from_redis_value};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

/// How long a WAIT on the same connection may delay a release before the client sends the release on another
/// connection.
const WAIT_LIMIT: Duration = Duration::from_millis(50);

/// The attempts of one call.
pub(crate) struct Request<'a> {
    pub(crate) client: &'a Arc<Inner>,
    pub(crate) name: Arc<OwnedKey>,
    slot: Slot,
    /// Whether the requests need a connection for this call alone, instead of the shared connection.
    pub(crate) is_alone: bool,
    /// The node and the connection of the last attempt. A connection for this call alone is used again while its node
    /// serves the key and replies.
    pub(crate) connection: Option<(Arc<Node>, Awaited<MultiplexedConnection>)>,
    /// Whether the last attempt was sent.
    is_sent: bool,
    /// No attempt lasts longer than this.
    pub(crate) deadline: Instant,
    /// The call fails if no server answers for this time.
    pub(crate) patience: Duration,
    /// The time from which the patience counts.
    since: Instant,
    /// Whether each answer starts the patience again.
    pub(crate) restarts_patience: bool,
    /// Set if the request must not be sent again when a server may have carried it out.
    pub(crate) runs_once: bool,
    /// How many replicas must confirm the request, and within which time. The client sends WAIT after the request in
    /// the same pipeline.
    pub(crate) replicas: Option<(usize, Duration)>,
    /// How many replicas have confirmed the request.
    pub(crate) confirmed_by: usize,
    /// How many attempts have failed since the last reply.
    failures: u32,
    /// Whether a server has answered during this call.
    pub(crate) is_answered: bool,
    /// Whether a server may have carried out a request of this call without a reply, or may still do so.
    pub(crate) may_have_run: bool,
    /// The node to which ASK has redirected the next attempt.
    asking: Option<Arc<Node>>,
}

impl<'a> Request<'a> {
    /// A request with the client's patience.
    pub(crate) fn new(client: &'a Arc<Inner>, name: &Arc<OwnedKey>) -> Self {
        Self {
            client,
            name: Arc::clone(name),
            slot: client.slot(&name.key),
            is_alone: false,
            connection: None,
            is_sent: false,
            deadline: from_now(FAR_FUTURE),
            patience: client.settings.patience,
            since: Instant::now(),
            restarts_patience: false,
            runs_once: false,
            replicas: None,
            confirmed_by: 0,
            failures: 0,
            is_answered: false,
            may_have_run: false,
            asking: None,
        }
    }

    /// Sends a request until there is a reply. Each attempt has the response limit.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub(crate) async fn repeat(&mut self, cmd: &Cmd) -> Result<Value, Error> {
        loop {
            if let Some(reply) = self.send(cmd, self.client.settings.response_limit).await? {
                return Ok(reply);
            }
        }
    }

    /// Sends a request once, and waits at most `limit` for the reply. `None` means that the caller should send the
    /// request again: there was no final reply, and the pause before the next attempt is over.
    ///
    /// # Errors
    /// [`Error::Refused`] when the server's error would come again after a repeat; [`Error::Unreachable`] when there is
    /// no time for another attempt.
    pub(crate) async fn send(&mut self, cmd: &Cmd, limit: Duration) -> Result<Option<Value>, Error> {
        let time_for_replicas = self.replicas.map_or(Duration::ZERO, |(_, within)| within);
        let limit = limit.min(until(self.end())).saturating_add(time_for_replicas);
        let may_have_run = self.may_have_run;
        self.is_sent = false;
        let replied = within(limit, self.exchange(cmd)).await;
        let is_answer = self.is_sent && replied.as_ref().err().is_none_or(|error| error.code().is_some());
        if is_answer {
            self.is_answered = true;
            self.may_have_run = may_have_run;
            if self.restarts_patience {
                self.since = Instant::now();
            }
        }
        let error = match replied {
            Ok(reply) => {
                self.failures = 0;
                return Ok(Some(reply));
            }
            Err(error) => error,
        };
        let is_final = if is_answer { self.note_refusal(&error) } else { self.note_silence(&error) };
        if is_final {
            return Err(Error::refused(self.name.shown(), &error));
        }
        if self.runs_once && self.may_have_run {
            return Err(self.unreachable(&error));
        }
        // The first repeat comes at once, because the connection may have been cut while it was idle.
        let end = self.end();
        if self.failures > 0 {
            // A random part makes the pause up to half longer, so that clients that failed at the same time repeat at
            // different times.
            let pause = pause_after(self.failures, 50, 1_000).mul_f64(1.0 + fastrand::f64() / 2.0);
            sleep(pause.min(until(end))).await;
        }
        self.failures += 1;
        if until(end).is_zero() { Err(self.unreachable(&error)) } else { Ok(None) }
    }

    async fn exchange(&mut self, cmd: &Cmd) -> RedisResult<Value> {
        let last = self.connection.take();
        let mut pipeline = redis::pipe();
        let node = match self.asking.take() {
            Some(node) => {
                pipeline.cmd("ASKING");
                node
            }
            None => self.client.node_for(self.slot).await?,
        };
        let before = pipeline.len();
        pipeline.add_command(cmd.clone());
        if let Some((count, within)) = self.replicas {
            // With 0, WAIT would wait without limit.
            pipeline.cmd("WAIT").arg(count).arg(millis(within).max(1));
        }
        let is_usable = self.is_alone && self.failures == 0;
        let connection = match last.filter(|(at, _)| is_usable && Arc::ptr_eq(at, &node)) {
            Some((_, connection)) => connection,
            None if self.is_alone => self.client.own(&node),
            None => self.client.shared(&node),
        };
        let mut connection = self.connection.insert((node, connection)).1.clone().await?;
        (self.is_sent, self.may_have_run) = (true, true);
        let replies = connection.send_packed_commands(&pipeline, before, pipeline.len() - before).await?;
        let mut replies = replies.into_iter();
        let reply = replies.next().ok_or_else(timed_out)?;
        self.confirmed_by = replies.next().and_then(|reply| from_redis_value(reply).ok()).unwrap_or(0);
        if let Value::ServerError(error) = reply { Err(error.into()) } else { Ok(reply) }
    }

    /// Handles an error that a server has sent. Returns true if a repeat would meet the error again.
    fn note_refusal(&mut self, error: &RedisError) -> bool {
        let Some((node, _)) = &self.connection else { return true };
        match error.code().unwrap_or_default() {
            "MOVED" => {
                if let Some(target) = self.client.redirect(error, node) {
                    self.client.assign(self.slot, &target);
                }
            }
            "ASK" => self.asking = self.client.redirect(error, node),
            "READONLY" | "UNBLOCKED" | "LOADING" | "MASTERDOWN" => node.suspect(),
            "CLUSTERDOWN" | "TRYAGAIN" | "SUPERSEDED" => {}
            code => {
                if code == "NOREPLICAS" {
                    // Another server may have replaced this server, and this server may not know that.
                    node.suspect();
                }
                return true;
            }
        }
        false
    }

    /// Handles a missing reply: the server cannot be reached, or its reply is late. Returns true if a repeat is useless
    /// because the server refuses the connection.
    fn note_silence(&mut self, error: &RedisError) -> bool {
        if !self.is_sent
            && (matches!(
                error.kind(),
                ErrorKind::AuthenticationFailed
                    | ErrorKind::InvalidClientConfig
                    | ErrorKind::RESP3NotSupported
                    | ErrorKind::MasterNameNotFoundBySentinel
            ) || matches!(error.code(), Some("WRONGPASS" | "NOAUTH" | "NOPERM")))
        {
            return true;
        }
        if let Some((node, connection)) = &self.connection {
            // A connection that is still being opened has not failed: the opening has its own time limit.
            let has_failed = self.is_sent || connection.peek().is_some();
            self.client.note_silence(node, has_failed.then_some(connection));
        }
        false
    }

    /// Changes when the connection to the last server breaks.
    pub(crate) fn broken(&self) -> watch::Receiver<()> {
        let node = self.connection.as_ref().map(|(node, _)| node);
        node.map_or_else(|| watch::channel(()).1, |node| node.broken.subscribe())
    }

    /// The time after which there is no further attempt.
    pub(crate) fn end(&self) -> Instant {
        self.deadline.min(self.since + self.patience)
    }

    fn unreachable(&self, error: &RedisError) -> Error {
        Error::Unreachable { key: self.name.shown(), cause: error.to_string() }
    }

    /// Sends a release in the background, until it is answered or `end` is reached. The release is sent at once if a
    /// connection is open. If an earlier request may still run, the release is sent on the connection of that request.
    /// So the server reads the release after the request, even if the server was stopped. If WAIT follows the earlier
    /// request, the server may not read the release for a long time. So the client soon sends the release on the shared
    /// connection too.
    pub(crate) fn release_in_background(&mut self, release: Cmd, end: Instant) {
        let (client, name) = (Arc::clone(self.client), Arc::clone(&self.name));
        let is_behind_wait = self.is_alone && self.may_have_run && self.connection.is_some();
        let earlier = self.connection.take().filter(|_| self.may_have_run);
        let used = earlier.or_else(|| client.known_connection(self.slot));
        let connection = used.as_ref().and_then(|(_, connection)| connection.peek()?.clone().ok());
        let cmd = release.clone();
        let sent = async move { connection?.send_packed_command(&cmd).await.ok() }.boxed().shared();
        // The first poll sends the release before this function returns.
        let _ = sent.clone().now_or_never();
        client.releases.send_modify(|releases| releases.push(Arc::clone(&name)));
        // Timers are created inside the task, because the caller may be outside a runtime.
        self.client.runtime.spawn(async move {
            let limit = client.settings.response_limit.min(until(end));
            let replied =
                timeout(if is_behind_wait { limit.min(WAIT_LIMIT) } else { limit }, sent.clone()).await;
            if !matches!(replied, Ok(Some(Value::Int(_)))) {
                if let Some((node, connection)) = used
                    && replied.is_err()
                    && !is_behind_wait
                    && !until(end).is_zero()
                {
                    client.note_silence(&node, Some(&connection));
                }
                let mut request = Request::new(&client, &name);
                (request.deadline, request.patience) = (end, FAR_FUTURE);
                let _ = request.repeat(&release).await;
                if is_behind_wait {
                    // The earlier request may still arrive. If this connection closed, the server might ignore the
                    // release that follows that request.
                    let _ = timeout(client.settings.response_limit.min(until(end)), sent).await;
                }
            }
            client.releases.send_modify(|releases| {
                let done = releases.iter().position(|release| Arc::ptr_eq(release, &name));
                done.map(|done| releases.swap_remove(done));
            });
        });
    }
}
