//! What all handles of one client share: the servers, which of them serves a key, and the connections to them.
//!
//! All short requests to a node share one connection. While a request waits on a connection, the server handles no
//! other request on it. So each waiter has its own connection.

use crate::address::{Address, with_host_and_port};
use crate::commands::OwnedKey;
use crate::error::Error;
use crate::mutex::locked;
use crate::settings::Settings;
use futures_util::future::{BoxFuture, FutureExt, Shared, select_ok};
use redis::aio::MultiplexedConnection;
use redis::cluster_routing::Slot;
use redis::io::tcp::TcpSettings;
use redis::{
    AsyncConnectionConfig, ConnectionInfo, ErrorKind, ProtocolVersion, PushInfo, PushKind, RedisError,
    RedisResult, Value, cmd,
};
use std::collections::HashMap;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};
use tokio::time::{sleep, timeout};
use uuid::Uuid;

/// How long a node keeps an idle connection for the next waiter.
const IDLE_LIMIT: Duration = Duration::from_secs(5);

/// The result of a task of the client's runtime, for all callers that need it. The task goes on even if these callers
/// leave or their own runtimes stand still.
pub(crate) type Awaited<T> = Shared<BoxFuture<'static, RedisResult<T>>>;

/// What all handles of one client share.
pub(crate) struct Inner {
    pub(crate) settings: Settings,
    pub(crate) runtime: Handle,
    /// One permit for each connection that may wait in a queue.
    pub(crate) wait_permits: Semaphore,
    /// The releases that are in progress in the background.
    pub(crate) releases: watch::Sender<Vec<Arc<OwnedKey>>>,
    address: Address,
    id: Uuid,
    next_owner: AtomicU64,
    nodes: Mutex<HashMap<String, Arc<Node>>>,
    /// The node of each slot that the client knows. If the servers are no cluster, all keys are in one slot.
    routes: Mutex<HashMap<Slot, Arc<Node>>>,
    last_primary: Mutex<Option<Arc<Node>>>,
    /// The lookup of the primary that is in progress.
    lookup: Mutex<Option<Awaited<Arc<Node>>>>,
}

/// A server, and the connections to it.
pub(crate) struct Node {
    info: ConnectionInfo,
    shared: Mutex<Option<Awaited<MultiplexedConnection>>>,
    /// Connections for the next waiters, each with the time since which it is idle. None of these connections has a
    /// request in progress.
    pub(crate) idle: Mutex<Vec<(Instant, Awaited<MultiplexedConnection>)>>,
    /// The last time at which the server did not answer.
    silent_since: Mutex<Option<Instant>>,
    /// Changes when the shared connection breaks, and when another node has become the primary.
    pub(crate) broken: watch::Sender<()>,
}

impl Inner {
    pub(crate) fn new(address: Address, settings: Settings) -> Result<Arc<Self>, Error> {
        let runtime =
            Handle::try_current().map_err(|_| Error::invalid("create the client in a tokio runtime"))?;
        Ok(Arc::new(Self {
            wait_permits: Semaphore::new(settings.waiting_connections.min(Semaphore::MAX_PERMITS)),
            settings,
            runtime,
            releases: watch::Sender::default(),
            address,
            id: Uuid::new_v4(),
            next_owner: AtomicU64::new(0),
            nodes: Mutex::default(),
            routes: Mutex::default(),
            last_primary: Mutex::default(),
            lookup: Mutex::default(),
        }))
    }

    /// The name of an owner that nobody else uses.
    pub(crate) fn unique_owner(&self) -> Vec<u8> {
        format!("{}:{}", self.id, self.next_owner.fetch_add(1, Ordering::Relaxed)).into_bytes()
    }

    pub(crate) fn slot(&self, key: &[u8]) -> Slot {
        Slot::for_key(if matches!(self.address, Address::Cluster(_)) { key } else { &[] })
    }

    /// The node that serves a slot, as far as is known.
    pub(crate) async fn node_for(self: &Arc<Self>, slot: Slot) -> RedisResult<Arc<Node>> {
        let known = locked(&self.routes).get(&slot).cloned();
        if let Some(node) = known {
            return Ok(node);
        }
        let node = match &self.address {
            Address::Server(info) => self.node(info.clone()),
            Address::Sentinels { .. } => self.primary().await?,
            // Any node redirects a request to the right node. Nodes that did not answer lately come last.
            Address::Cluster(seeds) => {
                let seeds: Vec<_> = seeds.iter().map(|info| self.node(info.clone())).collect();
                let known: Vec<_> = locked(&self.nodes).values().cloned().collect();
                let node = seeds.into_iter().chain(known).min_by_key(|node| *locked(&node.silent_since));
                node.ok_or_else(timed_out)?
            }
        };
        self.assign(slot, &node);
        Ok(node)
    }

    /// Notes which node serves a slot.
    pub(crate) fn assign(&self, slot: Slot, node: &Arc<Node>) {
        locked(&self.routes).insert(slot, Arc::clone(node));
    }

    /// Forgets the routes to a node. Before the next request, the client looks up which node serves these slots.
    pub(crate) fn forget_routes_to(&self, node: &Arc<Node>) {
        locked(&self.routes).retain(|_, known| !Arc::ptr_eq(known, node));
    }

    /// Notes that a node did not answer a request. `shared` is the connection of the request, which is dropped if it is
    /// the node's shared connection.
    pub(crate) fn note_silence(&self, node: &Arc<Node>, shared: Option<&Awaited<MultiplexedConnection>>) {
        *locked(&node.silent_since) = Some(Instant::now());
        self.forget_routes_to(node);
        // If a newer shared connection has replaced this one already, the newer one stays.
        locked(&node.shared).take_if(|open| shared.is_some_and(|shared| open.ptr_eq(shared)));
        locked(&node.idle).clear();
    }

    /// The node in a redirect, such as `MOVED 3999 127.0.0.1:6381`, which the node `from` has sent.
    pub(crate) fn redirect(&self, error: &RedisError, from: &Node) -> Option<Arc<Node>> {
        let (host, port) = error.redirect_node()?.0.rsplit_once(':')?;
        Some(self.node(with_host_and_port(&from.info, host, port.parse().ok()?)))
    }

    fn node(&self, info: ConnectionInfo) -> Arc<Node> {
        let mut nodes = locked(&self.nodes);
        let node = nodes.entry(info.addr().to_string()).or_insert_with(|| {
            let node = Arc::new(Node {
                info,
                shared: Mutex::default(),
                idle: Mutex::default(),
                silent_since: Mutex::default(),
                broken: watch::Sender::new(()),
            });
            self.runtime.spawn(close_idle(Arc::downgrade(&node)));
            node
        });
        Arc::clone(node)
    }

    fn spawn<T: Clone + Send + Sync + 'static>(
        &self,
        work: impl Future<Output = RedisResult<T>> + Send + 'static,
    ) -> Awaited<T> {
        let task = self.runtime.spawn(work);
        async move { task.await.unwrap_or_else(|_| Err(timed_out())) }.boxed().shared()
    }

    /// The shared connection to a node. Opens a connection if there is none.
    pub(crate) fn shared(&self, node: &Arc<Node>) -> Awaited<MultiplexedConnection> {
        let mut shared = locked(&node.shared);
        // If the last attempt to open a connection has failed, the code below opens a new one.
        if let Some(open) = shared.as_ref().filter(|open| !matches!(open.peek(), Some(Err(_)))) {
            return open.clone();
        }
        let at = Arc::downgrade(node);
        let config = AsyncConnectionConfig::new().set_push_sender(move |push: PushInfo| {
            if let Some(node) = at.upgrade().filter(|_| push.kind == PushKind::Disconnection) {
                node.broken.send_replace(());
            }
            Ok::<(), redis::aio::SendError>(())
        });
        shared.insert(self.spawn(open(node.info.clone(), config, self.settings.response_limit))).clone()
    }

    /// The node that is known to serve a slot, and the shared connection to it. `None` if the client knows no node or
    /// has no shared connection to the node.
    pub(crate) fn known_connection(&self, slot: Slot) -> Option<(Arc<Node>, Awaited<MultiplexedConnection>)> {
        let node = Arc::clone(locked(&self.routes).get(&slot)?);
        let shared = locked(&node.shared).clone()?;
        Some((node, shared))
    }

    /// A connection to a node for one call alone. When the call drops the connection, the connection closes, and the
    /// server notices that the waiter has left.
    pub(crate) fn own(&self, node: &Node) -> Awaited<MultiplexedConnection> {
        let idle = locked(&node.idle).pop().map(|(_, connection)| connection);
        let (info, limit) = (node.info.clone(), self.settings.response_limit);
        idle.unwrap_or_else(|| self.spawn(open(info, AsyncConnectionConfig::new(), limit)))
    }

    /// The primary that the Sentinels name. One lookup serves all callers that ask at the same time.
    async fn primary(self: &Arc<Self>) -> RedisResult<Arc<Node>> {
        let inner = Arc::clone(self);
        let begin = || {
            self.spawn(async move {
                let primary = within(inner.settings.response_limit, inner.find_primary()).await?;
                let last = locked(&inner.last_primary).replace(Arc::clone(&primary));
                if let Some(last) = last.filter(|last| !Arc::ptr_eq(last, &primary)) {
                    last.broken.send_replace(());
                }
                Ok(primary)
            })
        };
        let lookup = {
            let mut lookup = locked(&self.lookup);
            lookup.take_if(|lookup| lookup.peek().is_some());
            lookup.get_or_insert_with(begin).clone()
        };
        lookup.await
    }

    async fn find_primary(&self) -> RedisResult<Arc<Node>> {
        let Address::Sentinels { sentinels, name, server } = &self.address else { return Err(timed_out()) };
        let limit = self.settings.response_limit;
        let asked = sentinels.iter().map(|sentinel| {
            let asking = async move {
                let mut sentinel = open(sentinel.clone(), AsyncConnectionConfig::new(), limit).await?;
                let query = cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(name).to_owned();
                let address: Option<(String, u16)> = query.query_async(&mut sentinel).await?;
                let (host, port) = address.ok_or_else(|| {
                    let kind = ErrorKind::MasterNameNotFoundBySentinel;
                    RedisError::from((kind, "the Sentinel knows no primary by that name"))
                })?;
                self.check_primary(self.node(with_host_and_port(server, &host, port))).await
            };
            asking.boxed()
        });
        // The last known primary is asked a little later, so that it is used only if no Sentinel answers in this time.
        let last = locked(&self.last_primary).clone().map(|last| {
            let check = async move {
                sleep(limit / 8).await;
                self.check_primary(last).await
            };
            check.boxed()
        });
        Ok(select_ok(asked.chain(last)).await?.0)
    }

    /// Returns `node` if the node says that it is a primary.
    async fn check_primary(&self, node: Arc<Node>) -> RedisResult<Arc<Node>> {
        let shared = self.shared(&node);
        let asking = async { cmd("ROLE").query_async::<Value>(&mut shared.clone().await?).await };
        // This request gets half the limit, because it is the second step of a lookup that must end within the whole
        // limit.
        let role = within(self.settings.response_limit / 2, asking).await.inspect_err(|error| {
            if error.code().is_none() {
                self.note_silence(&node, Some(&shared));
            }
        })?;
        let master = Value::BulkString(b"master".to_vec());
        if role.as_sequence().and_then(<[_]>::first) == Some(&master) {
            return Ok(node);
        }
        Err(io::Error::other("the server is not the primary yet").into())
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Client").field("id", &self.id).finish_non_exhaustive()
    }
}

async fn open(
    info: ConnectionInfo,
    config: AsyncConnectionConfig,
    limit: Duration,
) -> RedisResult<MultiplexedConnection> {
    // The redis crate reports the end of a connection only with RESP3.
    let redis = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
    let redis = redis.set_lib_name("lockward-client", env!("CARGO_PKG_VERSION"));
    let info = info.set_redis_settings(redis).set_tcp_settings(TcpSettings::default().set_nodelay(true));
    let config = config.set_connection_timeout(None).set_response_timeout(None);
    let client = redis::Client::open(info)?;
    within(limit, client.get_multiplexed_async_connection_with_config(&config)).await
}

/// Closes the connections that nobody has used for some time, until the node is dropped.
async fn close_idle(node: Weak<Node>) {
    while let Some(node) = node.upgrade() {
        locked(&node.idle).retain(|(since, _)| since.elapsed() < IDLE_LIMIT);
        drop(node);
        sleep(IDLE_LIMIT).await;
    }
}

/// The result of some work, or an error when it takes longer than `limit`.
pub(crate) async fn within<T>(limit: Duration, work: impl Future<Output = RedisResult<T>>) -> RedisResult<T> {
    timeout(limit, work).await.unwrap_or_else(|_| Err(timed_out()))
}

pub(crate) fn timed_out() -> RedisError {
    RedisError::from(io::Error::from(io::ErrorKind::TimedOut))
}
