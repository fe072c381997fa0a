//! Sends one request until there is a reply, or until there is no time for another attempt.
//!
//! Each attempt goes to the node that serves the key, as far as the client knows. If an attempt fails, the client
//! remembers the reason, and the next attempt and other requests use this knowledge: the slot has moved, the server is
//! a replica now, or the connection is broken.

use crate::commands::OwnedKey;
use crate::error::Error;
use crate::replication::Replication;
use crate::servers::{Awaited, Inner, Node, timed_out, within};
use crate::time::{FAR_FUTURE, pause_after, until};
use futures_util::future::FutureExt;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, ErrorKind, RedisError, RedisResult, Value, from_redis_value, pipe};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::{sleep, timeout_at};

/// The attempts of one call.
pub(crate) struct Request {
    pub(crate) client: Arc<Inner>,
    pub(crate) name: Arc<OwnedKey>,
    /// Whether the requests need a connection for this call alone, instead of the shared connection.
    pub(crate) is_alone: bool,
    /// The node and the connection of the last attempt.
    pub(crate) connection: Option<(Arc<Node>, Awaited<MultiplexedConnection>)>,
    /// Whether the last attempt was sent.
    pub(crate) is_sent: bool,
    /// The replies to commands that were sent before the first attempt. The first attempt only waits for these replies.
    early_replies: Option<Awaited<Vec<Value>>>,
    /// After this time the call makes no further attempt.
    pub(crate) deadline: Instant,
    /// The call also fails if no server answers for this time.
    pub(crate) patience: Duration,
    /// When the patience began: at the beginning of the call, or at the last answer of a server.
    since: Instant,
    /// Whether the call fails when a server may have carried out the request, but its reply is missing.
    pub(crate) runs_once: bool,
    /// Whether the command is LOCK.RELEASE. The client repeats such a request after MISCONF.
    pub(crate) is_release: bool,
    /// The pipelines that this request joins, if replicas must confirm the request.
    pub(crate) replication: Option<Arc<Replication>>,
    /// How many replicas have confirmed the request.
    pub(crate) confirmed_by: usize,
    /// How many attempts have failed since the last reply.
    failures: u32,
    /// Whether a server has answered during this call.
    pub(crate) is_answered: bool,
    /// Whether a server may have carried out a request of this call, or may still do so, but its reply is missing.
    pub(crate) may_have_run: bool,
    /// The node to which ASK has redirected the next attempt.
    asking: Option<Arc<Node>>,
}

impl Request {
    /// A request that ends at the deadline.
    pub(crate) fn new(client: &Arc<Inner>, name: &Arc<OwnedKey>, deadline: Instant) -> Self {
        Self {
            client: Arc::clone(client),
            name: Arc::clone(name),
            is_alone: false,
            connection: None,
            is_sent: false,
            early_replies: None,
            deadline,
            patience: FAR_FUTURE,
            since: Instant::now(),
            runs_once: false,
            is_release: false,
            replication: None,
            confirmed_by: 0,
            failures: 0,
            is_answered: false,
            may_have_run: false,
            asking: None,
        }
    }

    /// Sends a command until there is a reply. Each attempt has the response limit.
    ///
    /// # Errors
    /// The errors of [`ask`](Self::ask).
    pub(crate) async fn repeat(&mut self, cmd: &Cmd) -> Result<Value, Error> {
        let limit = self.client.settings.response_limit;
        self.ask(|_| Ok((cmd.clone(), limit))).await
    }

    /// Makes attempts until there is a reply. `next` returns the command of the next attempt, and how long the client
    /// waits for the reply. `next` gets the longest lease that the server accepts, in milliseconds, or `u64::MAX` if
    /// the client does not know this lease.
    ///
    /// # Errors
    /// The errors of `next`; [`Error::Refused`] when the server's error would come again after a repeat;
    /// [`Error::Unreachable`] when there is no time for another attempt, when a wait gets no connection, or when a
    /// request that runs only once may have run.
    pub(crate) async fn ask(
        &mut self,
        mut next: impl FnMut(u64) -> Result<(Cmd, Duration), Error>,
    ) -> Result<Value, Error> {
        let mut longest_lease = u64::MAX;
        // The confirmation of a wait uses the connection of the wait, so it needs no permit.
        if let Some(replication) = self.replication.as_ref().filter(|_| !self.is_alone) {
            let permits = Arc::clone(&self.client.replication_permits);
            let permit = replication.permit.get_or_try_init(|| permits.acquire_owned());
            if timeout_at(self.end().into(), permit).await.is_err() {
                return Err(self.unreachable("other calls use all connections"));
            }
            self.since = Instant::now();
        }
        loop {
            let (cmd, limit) = next(longest_lease)?;
            let time_for_replicas = self.replication.as_ref().map_or(Duration::ZERO, |each| each.wanted.1);
            let limit = limit.min(until(self.end())).saturating_add(time_for_replicas);
            self.is_sent = false;
            let was_asking = self.asking.is_some();
            let replied = within(limit, self.exchange(&cmd)).await;
            let refusal = replied.as_ref().err().map(|error| error.code().unwrap_or_default());
            // After READONLY or NOREPLICAS there may be no primary that accepts the request. After MOVED or ASK the client
            // may be unable to reach the other node.
            if self.is_sent && !matches!(refusal, Some("" | "READONLY" | "NOREPLICAS" | "MOVED" | "ASK")) {
                (self.is_answered, self.since) = (true, Instant::now());
            }
            let error = match replied {
                Ok(reply) => {
                    self.failures = 0;
                    return Ok(reply);
                }
                Err(error) => error,
            };
            if self.is_final(&error) {
                let refused = Error::refused(self.name.shown(), &error);
                longest_lease = match refused.longest_lease() {
                    Some(longest) if longest_lease == u64::MAX => longest,
                    _ => return Err(refused),
                };
                continue;
            }
            // A request that waits for the lock ends here if it gets no connection of its own. Then the call polls. But
            // the client repeats a request with the command WAIT: polling does not help, because WAIT always needs a
            // connection of its own.
            let has_none = self.is_alone && !self.is_sent && self.replication.is_none();
            let is_over = has_none || self.runs_once && self.may_have_run;
            // The first repeat comes at once, because the server may have closed the connection while it was idle.
            // After ASK the client repeats at once, because the slot may move again.
            let is_redirected = self.asking.is_some() && !was_asking;
            if self.failures > 0 && !is_over && !is_redirected {
                // The random part makes the pause up to 50 % longer. So clients that failed at the same time repeat
                // their requests at different times.
                let pause = pause_after(self.failures, 50, 1_000).mul_f64(1.0 + fastrand::f64() / 2.0);
                sleep(pause.min(until(self.end()))).await;
            }
            self.failures += 1;
            if is_over || until(self.end()).is_zero() {
                return Err(self.unreachable(error));
            }
        }
    }

    /// Sends a command once, or waits for the replies to the command that was sent before.
    async fn exchange(&mut self, cmd: &Cmd) -> RedisResult<Value> {
        let may_have_run = self.may_have_run;
        let replies = match self.early_replies.take() {
            Some(replies) => {
                (self.is_sent, self.may_have_run) = (true, true);
                replies.await?
            }
            None => {
                let mut pipeline = pipe();
                self.connection = None;
                let node = match self.asking.take() {
                    Some(node) => {
                        pipeline.cmd("ASKING");
                        node
                    }
                    None => self.client.node_for(&self.name.key).await?,
                };
                let before = pipeline.len();
                pipeline.add_command(cmd.clone());
                let joined = self.replication.as_ref().map(|each| each.join(&self.client, &node, &pipeline));
                let opening = match &joined {
                    Some((opening, _)) => opening.clone(),
                    None if self.is_alone => self.client.own(&node),
                    None => self.client.shared(&node),
                };
                let (node, connection) = self.connection.insert((node, opening));
                let mut open = connection.clone().await?;
                (self.is_sent, self.may_have_run) = (true, true);
                if let Some((_, replies)) = joined {
                    replies.await?
                } else {
                    let replies = open.send_packed_commands(&pipeline, before, 1).await?;
                    if self.is_alone {
                        node.keep_idle(connection.clone());
                    }
                    replies
                }
            }
        };
        let mut replies = replies.into_iter();
        let reply = replies.next().ok_or_else(timed_out)?;
        if matches!(reply, Value::ServerError(_)) {
            self.may_have_run = may_have_run;
            return reply.extract_error();
        }
        // If the reply to WAIT is an error, the server has carried out the request.
        self.confirmed_by = match replies.next() {
            Some(reply) => from_redis_value(reply.extract_error()?)?,
            None => 0,
        };
        self.may_have_run = may_have_run;
        Ok(reply)
    }

    /// Stores the effect of an error for later attempts. Returns whether the error would come again after a repeat.
    fn is_final(&mut self, error: &RedisError) -> bool {
        let code = error.code().unwrap_or_default();
        let text = error.to_string();
        if !self.is_sent
            && (matches!(
                error.kind(),
                ErrorKind::AuthenticationFailed
                    | ErrorKind::InvalidClientConfig
                    | ErrorKind::MasterNameNotFoundBySentinel
            ) || matches!(code, "WRONGPASS" | "NOAUTH" | "NOPERM")
                // The redis crate hides the code of such an error. A busy server also refuses SELECT.
                || text.contains("refused to switch database") && !text.contains(" is busy "))
        {
            return true;
        }
        let Some((node, connection)) = &self.connection else { return false };
        if !self.is_sent || code.is_empty() {
            // While a connection is being opened, it has not failed: the opening has its own time limit.
            let has_failed = self.is_sent || connection.peek().is_some();
            self.client.note_silence(node, has_failed.then_some(connection));
            return false;
        }
        match code {
            "MOVED" | "ASK" if !self.client.is_cluster() => return true,
            "MOVED" => {
                let target = self.client.redirect(error, node);
                target.map(|target| self.client.assign(&self.name.key, &target));
            }
            "ASK" => self.asking = self.client.redirect(error, node),
            // The script of a guarded command may return these errors itself, after it has written.
            "TRYAGAIN" | "UNBLOCKED" | "SUPERSEDED" | "NOREPLICAS" if self.runs_once => return true,
            "BUSY" | "TRYAGAIN" | "SUPERSEDED" => {}
            "MISCONF" if self.is_release => {}
            // The node may have left the cluster, so the client asks another node.
            "CLUSTERDOWN" => _ = self.client.note_silence(node, None),
            // Another server may be the primary now. It may have the same address, so the client opens a new
            // connection.
            "READONLY" | "UNBLOCKED" | "LOADING" | "MASTERDOWN" | "NOREPLICAS" => {
                // The first such reply of a call also makes the client renew the held locks on the new connection.
                if self.client.note_silence(node, Some(connection)) && self.failures == 0 {
                    self.client.broken.send_replace(());
                }
            }
            _ => return true,
        }
        false
    }

    /// The error of a call that gets no reply. It names the address of the last attempt. If the client has found no
    /// server, it names the addresses that the program has named.
    pub(crate) fn unreachable(&self, why: impl std::fmt::Display) -> Error {
        let node = self.connection.as_ref().map(|(node, _)| std::slice::from_ref(&node.info));
        let servers = node.unwrap_or_else(|| self.client.address.servers());
        let servers = servers.iter().map(|server| server.addr().to_string()).collect::<Vec<_>>().join(", ");
        Error::Unreachable { key: self.name.shown(), cause: format!("{servers}: {why}") }
    }

    /// The time after which there is no further attempt.
    pub(crate) fn end(&self) -> Instant {
        self.deadline.min(self.since + self.patience)
    }

    /// Sends a release in the background, until there is a reply or the deadline is reached. If a connection is open,
    /// the client sends the release at once. If an earlier request may still run, the client sends the release on the
    /// connection of that request. So the server reads the release after the request, even if the server is paused now.
    pub(crate) fn release_in_background(&mut self, release: Cmd) {
        let (client, name) = (Arc::clone(&self.client), Arc::clone(&self.name));
        let mut request = Self::new(&client, &name, self.deadline);
        request.is_release = true;
        let earlier = self.connection.take().filter(|_| self.may_have_run);
        request.connection = earlier.or_else(|| client.known_connection(&name.key));
        if let Some(Ok(mut open)) = request.connection.as_ref().and_then(|(_, open)| open.peek().cloned()) {
            let cmd = release.clone();
            let sent = async move { open.send_packed_command(&cmd).await.map(|reply| vec![reply]) };
            let replies = sent.boxed().shared();
            // This poll sends the release before this function returns.
            let _ = replies.clone().now_or_never();
            request.early_replies = Some(replies);
        }
        client.releases.send_modify(|releases| releases.push(Arc::clone(&name)));
        // The connection stays open until the release has ended, and so the call keeps its permit.
        let replication = self.replication.take();
        // Timers are created inside the task, because the caller may be outside a runtime.
        self.client.runtime.spawn(async move {
            let _ = request.repeat(&release).await;
            drop(replication);
            client.releases.send_modify(|releases| {
                let done = releases.iter().position(|release| Arc::ptr_eq(release, &name));
                done.map(|done| releases.swap_remove(done));
            });
        });
    }
}
