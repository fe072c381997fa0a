//! The connections to one node.
//!
//! All short requests share one connection. A connection on which a request waits can do nothing else, so each waiter has
//! one of its own, and some of these are kept idle for the next waiters.

use crate::commands::{check_reply, read};
use crate::error::Error;
use crate::time::{millis, within};
use futures_util::future::TryFutureExt;
use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{AsyncConnectionConfig, Client, Cmd, ConnectionInfo, ProtocolVersion, PushInfo, PushKind, Value};
use socket2::TcpKeepalive;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How many idle connections each node keeps for the next waiters.
const MAX_IDLE: usize = 16;

/// The operating system probes a connection that has been silent for so long, and then four times as often. So no waiter
/// waits for ever on a dead connection.
const KEEPALIVE: Duration = Duration::from_secs(12);

/// Opens connections.
pub(crate) struct Connector {
    response_limit: Duration,
    on_break: Arc<dyn Fn() + Send + Sync>,
}

/// A server, and the connections to it.
pub(crate) struct Node {
    pub(crate) info: ConnectionInfo,
    shared: tokio::sync::Mutex<SharedState>,
    idle: Mutex<Vec<MultiplexedConnection>>,
}

#[derive(Default)]
struct SharedState {
    connection: Option<SharedConnection>,
    failure: LastFailure,
}

#[derive(Clone)]
pub(crate) struct SharedConnection {
    id: u64,
    pub(crate) connection: MultiplexedConnection,
}

/// A connection for one request that waits. Dropping it closes it, and the server removes the waiter from the queue.
pub(crate) struct DedicatedConnection {
    pub(crate) node: Arc<Node>,
    pub(crate) connection: MultiplexedConnection,
}

/// What a request is sent on.
pub(crate) enum ConnectionKind<'a> {
    Shared,
    /// The connection is opened when it is needed, and used again while its node serves the key.
    Dedicated(&'a mut Option<DedicatedConnection>),
}

/// The last failure of an action that callers perform one at a time. Callers that waited for that attempt get the same error
/// and do not try again.
#[derive(Default)]
pub(crate) struct LastFailure(Option<(Instant, Error)>);

impl Connector {
    /// `on_break` is called when a shared connection breaks.
    pub(crate) fn new(response_limit: Duration, on_break: impl Fn() + Send + Sync + 'static) -> Self {
        Self { response_limit, on_break: Arc::new(on_break) }
    }

    pub(crate) async fn connect(&self, info: &ConnectionInfo) -> Result<MultiplexedConnection, Error> {
        self.connect_with(info, AsyncConnectionConfig::new()).await
    }

    async fn connect_shared(&self, info: &ConnectionInfo) -> Result<MultiplexedConnection, Error> {
        let on_break = Arc::clone(&self.on_break);
        let config = AsyncConnectionConfig::new().set_push_sender(move |push: PushInfo| {
            if push.kind == PushKind::Disconnection {
                on_break();
            }
            Ok::<(), redis::aio::SendError>(())
        });
        self.connect_with(info, config).await
    }

    async fn connect_with(
        &self,
        info: &ConnectionInfo,
        config: AsyncConnectionConfig,
    ) -> Result<MultiplexedConnection, Error> {
        // With RESP3 the redis crate reports the end of a connection.
        let redis = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        let redis = redis.set_lib_name("lockward-client", env!("CARGO_PKG_VERSION"));
        let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE / 4);
        let tcp = TcpSettings::default().set_nodelay(true).set_keepalive(keepalive);
        let info = info.clone().set_redis_settings(redis).set_tcp_settings(tcp);
        let limit = self.response_limit;
        let config = config.set_connection_timeout(Some(limit)).set_response_timeout(None);
        let connecting =
            async { Client::open(info)?.get_multiplexed_async_connection_with_config(&config).await };
        within(limit, connecting.map_err(Error::from_redis)).await
    }
}

impl Node {
    pub(crate) fn new(info: ConnectionInfo) -> Self {
        Self { info, shared: tokio::sync::Mutex::default(), idle: Mutex::default() }
    }

    /// The shared connection. It is opened if there is none.
    pub(crate) async fn shared(&self, connector: &Connector) -> Result<SharedConnection, Error> {
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        let begun = Instant::now();
        let mut shared = self.shared.lock().await;
        if let Some(open) = &shared.connection {
            return Ok(open.clone());
        }
        shared.failure.check_since(begun)?;
        let opened = connector.connect_shared(&self.info).await;
        let connection = opened.map_err(|error| shared.failure.note(error))?;
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        Ok(shared.connection.insert(SharedConnection { id, connection }).clone())
    }

    /// Forgets a shared connection that does not work. Its successor, if there is one already, stays.
    pub(crate) async fn close_shared(&self, broken: &SharedConnection) {
        let mut shared = self.shared.lock().await;
        if shared.connection.as_ref().is_some_and(|open| open.id == broken.id) {
            shared.connection = None;
        }
    }

    /// Sends a command on the shared connection.
    pub(crate) async fn request(
        &self,
        connector: &Connector,
        cmd: &Cmd,
        limit: Duration,
    ) -> Result<Value, Error> {
        let mut shared = self.shared(connector).await?;
        let reply = send_within(&mut shared.connection, cmd, limit).await;
        if reply.as_ref().is_err_and(Error::is_unreachable) {
            self.close_shared(&shared).await;
        }
        reply
    }

    pub(crate) async fn dedicated(
        self: &Arc<Self>,
        connector: &Connector,
    ) -> Result<DedicatedConnection, Error> {
        let idle = locked(&self.idle).pop();
        let connection = match idle {
            Some(connection) => connection,
            None => connector.connect(&self.info).await?,
        };
        Ok(DedicatedConnection { node: Arc::clone(self), connection })
    }

    pub(crate) fn close_idle(&self) {
        locked(&self.idle).clear();
    }
}

impl DedicatedConnection {
    /// Keeps the connection for the next waiter. No request may be in progress on it.
    pub(crate) fn keep_idle(self) {
        let mut idle = locked(&self.node.idle);
        if idle.len() < MAX_IDLE {
            idle.push(self.connection);
        }
    }

    /// Waits until `count` replicas have confirmed all that was written before the last command on this connection, for
    /// `limit` at most. Returns how many have.
    pub(crate) async fn wait_for_replicas(
        &mut self,
        count: usize,
        limit: Duration,
        response_limit: Duration,
    ) -> Result<usize, Error> {
        // 0 would wait without limit.
        let wait = redis::cmd("WAIT").arg(count).arg(millis(limit).max(1)).to_owned();
        read(send_within(&mut self.connection, &wait, limit.saturating_add(response_limit)).await?)
    }
}

impl LastFailure {
    /// # Errors
    /// The failure, if it is not older than `begun`.
    pub(crate) fn check_since(&self, begun: Instant) -> Result<(), Error> {
        match &self.0 {
            Some((at, error)) if *at >= begun => Err(error.clone()),
            _ => Ok(()),
        }
    }

    pub(crate) fn note(&mut self, error: Error) -> Error {
        self.0 = Some((Instant::now(), error.clone()));
        error
    }
}

async fn send_within(
    connection: &mut MultiplexedConnection,
    cmd: &Cmd,
    limit: Duration,
) -> Result<Value, Error> {
    check_reply(within(limit, connection.send_packed_command(cmd).map_err(Error::from_redis)).await?)
}

/// Locks a mutex. Poisoning is ignored, as no panic can leave these values half changed.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
