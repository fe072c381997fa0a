//! Sends one request until there is a reply, or until there is no time for another attempt.
//!
//! Each attempt goes to the node that serves the key, as far as the client knows. If an attempt fails, the client
//! remembers the reason, and the next attempt and other requests use this knowledge: the slot has moved, the server is
//! a replica now, or the connection is broken.

use crate::commands::OwnedKey;
use crate::error::Error;
use crate::servers::{Connection, Inner, Node, within};
use crate::time::{FAR_FUTURE, millis, pause_after, until};
use futures_util::future::FutureExt;
use redis::{Cmd, ErrorKind, RedisError, RedisResult, Value, from_redis_value, pipe};
use std::mem::replace;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::yield_now;
use tokio::time::sleep;

/// The attempts of one call.
pub(crate) struct Request {
    pub(crate) client: Arc<Inner>,
    /// The keys of the request. Without a cluster, a request may have several keys.
    pub(crate) names: Vec<Arc<OwnedKey>>,
    /// Which key the last error is about: its position.
    refused: usize,
    /// Whether the request waits for the lock. Then it needs a connection of its own, and ends if it gets none.
    pub(crate) waits: bool,
    /// The node and the connection of the last attempt.
    pub(crate) connection: Option<(Arc<Node>, Connection)>,
    /// Whether the last attempt was sent.
    pub(crate) is_sent: bool,
    /// The node and the connection of the first attempt, if an earlier request has already used them.
    reused: Option<(Arc<Node>, Connection)>,
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
    /// How many replicas must confirm the request, and within which time. Then the request uses a connection of its own:
    /// on the shared connection, WAIT would delay the requests of other calls.
    pub(crate) replicas: Option<(usize, Duration)>,
    /// How many replicas have confirmed the request.
    pub(crate) confirmed_by: usize,
    /// Whether a server has answered during this call.
    pub(crate) is_answered: bool,
    /// Whether a server may have carried out a request of this call, or may still do so, but its reply is missing.
    pub(crate) may_have_run: bool,
    /// The node to which ASK has redirected the next attempt.
    asking: Option<Arc<Node>>,
}

impl Request {
    /// A request that ends at the deadline.
    pub(crate) fn new(client: &Arc<Inner>, names: Vec<Arc<OwnedKey>>, deadline: Instant) -> Self {
        Self {
            client: Arc::clone(client),
            names,
            refused: 0,
            waits: false,
            connection: None,
            is_sent: false,
            reused: None,
            deadline,
            patience: FAR_FUTURE,
            since: Instant::now(),
            runs_once: false,
            is_release: false,
            replicas: None,
            confirmed_by: 0,
            is_answered: false,
            may_have_run: false,
            asking: None,
        }
    }

    /// Sends a command until there is a reply. Each attempt has the response limit.
    ///
    /// # Errors
    /// The errors of [`ask`](Self::ask).
    pub(crate) async fn repeat(&mut self, cmd: &Cmd) -> Result<Vec<Value>, Error> {
        let limit = self.client.settings.response_limit;
        self.ask(|_| Ok((vec![cmd.clone()], limit))).await
    }

    /// Makes attempts until there are replies. `next` returns the commands of the next attempt, one for each key, and
    /// how long the client waits for the replies. `next` gets the longest lease that the server accepts, in
    /// milliseconds, or `u64::MAX` if the client does not know this lease.
    ///
    /// # Errors
    /// The errors of `next`; [`Error::Refused`] when the server's error would come again after a repeat;
    /// [`Error::Unreachable`] when there is no time for another attempt, when a wait gets no connection, or when a
    /// request that runs only once may have run.
    pub(crate) async fn ask(
        &mut self,
        mut next: impl FnMut(u64) -> Result<(Vec<Cmd>, Duration), Error>,
    ) -> Result<Vec<Value>, Error> {
        let (mut longest_lease, mut failures) = (u64::MAX, 0);
        loop {
            let (cmds, limit) = next(longest_lease)?;
            let time_for_replicas = self.replicas.map_or(Duration::ZERO, |(_, within)| within);
            let limit = limit.saturating_add(time_for_replicas).min(until(self.end()));
            self.is_sent = false;
            let was_asking = self.asking.is_some();
            let replied = within(limit, self.exchange(cmds)).await;
            let refusal = replied.as_ref().err().map(|error| error.code().unwrap_or_default());
            // After READONLY or NOREPLICAS there may be no primary that accepts the request. After MOVED or ASK the client
            // may be unable to reach the other node.
            if self.is_sent && !matches!(refusal, Some("" | "READONLY" | "NOREPLICAS" | "MOVED" | "ASK")) {
                (self.is_answered, self.since) = (true, Instant::now());
            }
            let error = match replied {
                Ok(replies) => return Ok(replies),
                Err(error) => error,
            };
            if self.is_final(&error, failures == 0) {
                let refused = Error::refused(shown(self.names.get(self.refused)), &error);
                longest_lease = match refused.longest_lease() {
                    Some(longest) if longest_lease == u64::MAX => longest,
                    _ => return Err(refused),
                };
                continue;
            }
            let has_no_connection = self.waits && !self.is_sent;
            let is_over = has_no_connection || self.runs_once && self.may_have_run;
            // The first repeat comes at once, because the server may have closed the connection while it was idle.
            // After ASK the client repeats at once, because the slot may move again.
            let is_redirected = self.asking.is_some() && !was_asking;
            if failures > 0 && !is_over && !is_redirected {
                // The random part makes the pause up to 50 % longer. So clients that failed at the same time repeat
                // their requests at different times.
                let pause = pause_after(failures, 50, 1_000).mul_f64(1.0 + fastrand::f64() / 2.0);
                // The first poll of a release creates no timer.
                yield_now().await;
                sleep(pause.min(until(self.end()))).await;
            }
            failures += 1;
            if is_over || until(self.end()).is_zero() {
                return Err(self.unreachable(error));
            }
        }
    }

    /// Sends the commands once. If replicas must confirm the request, the command WAIT follows in the same pipeline.
    async fn exchange(&mut self, cmds: Vec<Cmd>) -> RedisResult<Vec<Value>> {
        (self.connection, self.refused) = (None, 0);
        let mut pipeline = pipe();
        let is_alone = self.waits || self.replicas.is_some();
        let asking = self.asking.take();
        if asking.is_some() {
            pipeline.cmd("ASKING");
        }
        let (node, opening) = if let Some(reused) = self.reused.take() {
            reused
        } else {
            let node = match asking {
                Some(node) => node,
                None => self.client.node_for(self.key()).await?,
            };
            let opening = if is_alone { self.client.own(&node) } else { self.client.shared(&node) };
            (node, opening)
        };
        let before = pipeline.len();
        let count = cmds.len();
        cmds.into_iter().for_each(|cmd| _ = pipeline.add_command(cmd));
        if let Some((wanted, within)) = self.replicas {
            // For WAIT, a time of 0 means no limit.
            pipeline.cmd("WAIT").arg(wanted).arg(millis(within).max(1));
        }
        let (node, connection) = self.connection.insert((node, opening));
        let mut open = connection.clone().await?;
        self.is_sent = true;
        let may_have_run = replace(&mut self.may_have_run, true);
        let mut replies = open.send_packed_commands(&pipeline, before, pipeline.len() - before).await?;
        if is_alone {
            node.keep_idle(connection.clone());
        }
        let confirmed_by = replies.split_off(count.min(replies.len())).pop();
        let is_error = |reply: &Value| matches!(reply, Value::ServerError(_));
        if let Some(refused) = replies.iter().position(is_error) {
            self.refused = refused;
            // The server may have carried out the commands for the other keys.
            self.may_have_run = may_have_run || !replies.iter().all(is_error);
        } else {
            // If this reply to WAIT is an error, the server has carried out the request.
            self.confirmed_by = match confirmed_by {
                Some(reply) => from_redis_value(reply.extract_error()?)?,
                None => 0,
            };
            self.may_have_run = may_have_run;
        }
        replies.into_iter().map(Value::extract_error).collect()
    }

    /// Stores the effect of an error for later attempts. Returns whether the error would come again after a repeat.
    /// `is_first` is true for the first error of a call.
    fn is_final(&mut self, error: &RedisError, is_first: bool) -> bool {
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
                target.map(|target| self.client.assign(self.key(), &target));
            }
            "ASK" => self.asking = self.client.redirect(error, node),
            // The script of a guarded command may return these errors itself, after it has written.
            "TRYAGAIN" | "UNBLOCKED" | "SUPERSEDED" | "NOREPLICAS" if self.runs_once => return true,
            "BUSY" | "TRYAGAIN" | "SUPERSEDED" => {}
            "MISCONF" if self.is_release => {}
            // The node may have left the cluster, or another server may become the primary. So the client looks up the
            // primary again, at another node of the cluster or at the Sentinels.
            "CLUSTERDOWN" | "LOADING" => _ = self.client.note_silence(node, None),
            // Another server may be the primary now. It may have the same address, so the client opens a new
            // connection.
            "READONLY" | "UNBLOCKED" | "MASTERDOWN" | "NOREPLICAS" => {
                // The first such reply of a call also makes the client renew the held locks on the new connection.
                if self.client.note_silence(node, Some(connection)) && is_first {
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
        Error::Unreachable { key: shown(self.names.first()), cause: format!("{servers}: {why}") }
    }

    /// The first key. The node that serves this key serves all keys of the request.
    fn key(&self) -> &[u8] {
        self.names.first().map_or(&[], |name| &name.key)
    }

    /// # Errors
    /// [`Error::Unreplicated`] if too few replicas have confirmed the request.
    pub(crate) fn check_replicas(&self) -> Result<(), Error> {
        match self.replicas {
            Some((wanted, _)) if self.confirmed_by < wanted => {
                let (key, reached) = (shown(self.names.first()), self.confirmed_by);
                Err(Error::Unreplicated { key, reached, wanted })
            }
            _ => Ok(()),
        }
    }

    /// The time after which there is no further attempt.
    pub(crate) fn end(&self) -> Instant {
        self.deadline.min(self.since + self.patience)
    }

    /// Releases keys of this request in the background, until there is a reply or the deadline is reached. If a
    /// connection is open, the client sends the releases at once. If an earlier request may still run, the client sends
    /// the releases on the connection of that request. So the server reads the releases after the request, even if the
    /// server is paused now.
    pub(crate) fn release_in_background(
        &mut self,
        names: &[Arc<OwnedKey>],
        release: impl Fn(&OwnedKey) -> Cmd,
    ) {
        let (client, names) = (Arc::clone(&self.client), names.to_vec());
        let releases: Vec<_> = names.iter().map(|name| release(name)).collect();
        let mut request = Self::new(&client, names.clone(), self.deadline);
        request.is_release = true;
        request.reused = self.connection.take().filter(|_| self.may_have_run);
        client.releases.send_modify(|releases| releases.extend(names.clone()));
        let mut releasing = async move {
            let limit = client.settings.response_limit;
            let _ = request.ask(|_| Ok((releases.clone(), limit))).await;
            client.releases.send_modify(|releases| {
                for name in names {
                    let done = releases.iter().position(|release| Arc::ptr_eq(release, &name));
                    done.map(|done| releases.swap_remove(done));
                }
            });
        }
        .boxed();
        // This poll sends the release before this function returns.
        if (&mut releasing).now_or_never().is_none() {
            self.client.runtime.spawn(releasing);
        }
    }
}

/// The key of a request, for a person to read. Empty if the request has no key.
pub(crate) fn shown(name: Option<&Arc<OwnedKey>>) -> String {
    name.map_or_else(String::new, |name| name.shown())
}
