//! What all clones of a client share: the servers, which server serves which key, and the connections to the servers.
//!
//! All short requests to a node share one connection. While a request waits on a connection, the server handles no
//! other request of this connection. So each waiter has its own connection.

use crate::address::{Address, with_host_and_port};
use crate::commands::OwnedKey;
use crate::error::Error;
use crate::settings::Settings;
use futures_util::future::{BoxFuture, FutureExt, Shared, select_ok};
use futures_util::poll;
use redis::aio::MultiplexedConnection;
use redis::cluster_routing::Slot;
use redis::io::tcp::TcpSettings;
use redis::{
    AsyncConnectionConfig, ConnectionInfo, ErrorKind, ProtocolVersion, PushInfo, PushKind, RedisError,
    RedisResult, Role, cmd,
};
use std::collections::HashMap;
use std::fmt;
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Poll;
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};
use tokio::task::yield_now;
use tokio::time::{sleep, timeout, timeout_at};
use tokio_util::task::AbortOnDropHandle;
use uuid::Uuid;

/// How long a node keeps an idle connection for the next waiter.
const IDLE_LIMIT: Duration = Duration::from_secs(5);

/// The result of a task of the client's runtime, for all callers that need it. The task continues even if the runtimes of
/// these callers stop. When nobody needs the result any more, the task ends. So if a wait ends while its connection
/// is being opened, the client stops opening it.
type Awaited<T> = Shared<BoxFuture<'static, RedisResult<T>>>;

/// A connection that is open, or is being opened.
pub(crate) type Connection = Awaited<MultiplexedConnection>;

/// What all clones of a client share.
pub(crate) struct Inner {
    pub(crate) settings: Settings,
    pub(crate) runtime: Handle,
    /// One permit for each connection that may wait in a queue.
    pub(crate) wait_permits: Semaphore,
    /// The releases that are in progress in the background.
    pub(crate) releases: watch::Sender<Vec<Arc<OwnedKey>>>,
    /// Changes when a shared connection breaks, and when another server has become the primary.
    pub(crate) broken: watch::Sender<()>,
    pub(crate) address: Address,
    id: Uuid,
    next_owner: AtomicU64,
    /// The known nodes. A node that does not answer moves to the end.
    nodes: Mutex<Vec<Arc<Node>>>,
    /// The node of each slot, as far as the client knows it. Without a cluster, all keys are in one slot.
    routes: Mutex<HashMap<Slot, Arc<Node>>>,
    /// The lookup of the primary that is in progress.
    lookup: Mutex<Option<Awaited<Arc<Node>>>>,
}

/// A server, and the connections to it.
pub(crate) struct Node {
    pub(crate) info: ConnectionInfo,
    shared: Mutex<Option<Connection>>,
    /// The idle connections, for the next waiters. The instant of each connection is when it became idle. No request is
    /// in progress on these connections.
    idle: Mutex<Vec<(Instant, Connection)>>,
    /// Whether the client must look up again which node serves a slot, before its next request to this node.
    is_suspect: AtomicBool,
}

impl Node {
    /// Keeps the connection for the next waiter.
    pub(crate) fn keep_idle(&self, connection: Connection) {
        locked(&self.idle).push((Instant::now(), connection));
    }
}

impl Inner {
    pub(crate) fn new(address: Address, settings: Settings) -> Result<Arc<Self>, Error> {
        let runtime =
            Handle::try_current().map_err(|_| Error::invalid("create the client in a tokio runtime"))?;
        if address.servers().is_empty() {
            return Err(Error::invalid("the address names no server"));
        }
        let client = Self {
            wait_permits: Semaphore::new(settings.waiting_connections.min(Semaphore::MAX_PERMITS)),
            settings,
            runtime,
            releases: watch::Sender::default(),
            broken: watch::Sender::default(),
            id: Uuid::new_v4(),
            next_owner: AtomicU64::new(0),
            nodes: Mutex::default(),
            routes: Mutex::default(),
            lookup: Mutex::default(),
            address,
        };
        if !matches!(client.address, Address::Sentinels { .. }) {
            client.address.servers().iter().for_each(|info| drop(client.node(info.clone())));
        }
        Ok(Arc::new(client))
    }

    /// A name for an owner, which no other tenure in any process has.
    pub(crate) fn unique_owner(&self) -> Vec<u8> {
        format!("{}:{}", self.id, self.next_owner.fetch_add(1, Ordering::Relaxed)).into_bytes()
    }

    /// Waits for the background releases of all keys for which `is_meant` returns true. Stops waiting at `end`. Returns
    /// whether all these releases have ended.
    pub(crate) async fn releases_end(&self, end: Instant, is_meant: impl Fn(&OwnedKey) -> bool) -> bool {
        let mut releases = self.releases.subscribe();
        let ended = releases.wait_for(|releases| !releases.iter().any(|name| is_meant(name)));
        timeout_at(end.into(), ended).await.is_ok()
    }

    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self.address, Address::Cluster(_))
    }

    fn slot(&self, key: &[u8]) -> Slot {
        Slot::for_key(if self.is_cluster() { key } else { &[] })
    }

    /// The node that serves a key, as far as the client knows. The client may have to ask the Sentinels first.
    pub(crate) async fn node_for(self: &Arc<Self>, key: &[u8]) -> RedisResult<Arc<Node>> {
        let known = locked(&self.routes).get(&self.slot(key)).cloned();
        let node = match known {
            Some(node) if !node.is_suspect.load(Ordering::Relaxed) => return Ok(node),
            last if matches!(self.address, Address::Sentinels { .. }) => self.primary(last).await?,
            // Any node of a cluster redirects a request to the right node.
            _ => locked(&self.nodes).first().cloned().ok_or_else(timed_out)?,
        };
        self.assign(key, &node);
        Ok(node)
    }

    /// Stores which node serves a key. Returns the node that served the key before, as far as the client knew.
    pub(crate) fn assign(&self, key: &[u8], node: &Arc<Node>) -> Option<Arc<Node>> {
        node.is_suspect.store(false, Ordering::Relaxed);
        locked(&self.routes).insert(self.slot(key), Arc::clone(node))
    }

    /// Called when a node did not answer a request, or may not serve the key any more. `shared` is the connection of the
    /// request, if the client must not use this connection again. If it is the node's shared connection, the client
    /// drops it, and this function returns true.
    pub(crate) fn note_silence(&self, node: &Arc<Node>, shared: Option<&Connection>) -> bool {
        node.is_suspect.store(true, Ordering::Relaxed);
        locked(&self.nodes).sort_by_key(|each| Arc::ptr_eq(each, node));
        locked(&node.idle).clear();
        // If a newer shared connection has already replaced this connection, the newer connection stays.
        locked(&node.shared).take_if(|open| shared.is_some_and(|shared| open.ptr_eq(shared))).is_some()
    }

    /// The node in a redirect, such as `MOVED 3999 127.0.0.1:6381`, which the node `from` has sent.
    pub(crate) fn redirect(&self, error: &RedisError, from: &Node) -> Option<Arc<Node>> {
        let (host, port) = error.redirect_node()?.0.rsplit_once(':')?;
        Some(self.node(with_host_and_port(&from.info, host, port.parse().ok()?)))
    }

    fn node(&self, info: ConnectionInfo) -> Arc<Node> {
        let mut nodes = locked(&self.nodes);
        if let Some(node) = nodes.iter().find(|node| node.info.addr() == info.addr()) {
            return Arc::clone(node);
        }
        let node = Arc::new(Node {
            info,
            is_suspect: AtomicBool::new(false),
            shared: Mutex::default(),
            idle: Mutex::default(),
        });
        self.runtime.spawn(close_idle(Arc::downgrade(&node)));
        // The addresses of servers may change. So forget a node that serves no slot and has no request in progress. The
        // nodes that the program has named stay.
        let named = self.address.servers();
        nodes.retain(|node| {
            Arc::strong_count(node) > 1 || named.iter().any(|info| info.addr() == node.info.addr())
        });
        // A server has named this node just now, so this node comes before the nodes that did not answer.
        let behind_first = nodes.len().min(1);
        nodes.insert(behind_first, Arc::clone(&node));
        node
    }

    /// Opens a connection to a server or a Sentinel. If Sentinels watch the servers, the server must not be a replica.
    fn open(&self, info: &ConnectionInfo, config: AsyncConnectionConfig) -> Connection {
        // The redis crate reports the end of a connection only with RESP3.
        let redis = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        let redis = redis.set_lib_name("lockward-client", env!("CARGO_PKG_VERSION"));
        let tcp = TcpSettings::default().set_nodelay(true);
        let info = info.clone().set_redis_settings(redis).set_tcp_settings(tcp);
        let limit = self.settings.response_limit;
        let config = config.set_connection_timeout(Some(limit)).set_response_timeout(None);
        let is_watched = matches!(self.address, Address::Sentinels { .. });
        self.spawn(async move {
            let client = redis::Client::open(info)?;
            let connecting = client.get_multiplexed_async_connection_with_config(&config).await;
            let mut connection = connecting.map_err(|error| {
                if !error.is_connection_dropped() || error.is_connection_refusal() {
                    return error;
                }
                // A server with `maxclients` connections says so and closes the connection. The redis crate does not
                // return a reply that arrives before its first request.
                let text = "the server closed the new connection, perhaps because of its setting maxclients";
                io::Error::other(format!("{text}: {error}")).into()
            })?;
            if is_watched {
                // This request gets half the limit, so that a call has time to find another primary.
                let role = within(limit / 2, cmd("ROLE").query_async(&mut connection)).await?;
                if matches!(role, Role::Replica { .. }) {
                    return Err(io::Error::other("the server is a replica").into());
                }
            }
            Ok(connection)
        })
    }

    fn spawn<T: Clone + Send + Sync + 'static>(
        &self,
        work: impl Future<Output = RedisResult<T>> + Send + 'static,
    ) -> Awaited<T> {
        // Dropping this handle ends the task.
        let task = AbortOnDropHandle::new(self.runtime.spawn(work));
        task.map(|ended| ended.unwrap_or_else(|_| Err(timed_out()))).boxed().shared()
    }

    /// The shared connection to a node. Opens a connection if there is none.
    pub(crate) fn shared(&self, node: &Arc<Node>) -> Connection {
        let mut shared = locked(&node.shared);
        // If the last attempt to open a connection failed, `open` contains the error. Then try again below.
        if let Some(open) = shared.as_ref().filter(|open| !matches!(open.peek(), Some(Err(_)))) {
            return open.clone();
        }
        let (at, broken) = (Arc::downgrade(node), self.broken.clone());
        let config = AsyncConnectionConfig::new().set_push_sender(move |push: PushInfo| {
            if let Some(node) = at.upgrade().filter(|_| push.kind == PushKind::Disconnection) {
                // The next request must use a new connection at once, because a guarded command has only one attempt.
                *locked(&node.shared) = None;
                broken.send_replace(());
            }
            Ok::<(), redis::aio::SendError>(())
        });
        shared.insert(self.open(&node.info, config)).clone()
    }

    /// A connection to a node for one request alone. When the request drops the connection, the connection closes, and
    /// the server notices that the waiter has left.
    pub(crate) fn own(&self, node: &Node) -> Connection {
        let idle = locked(&node.idle).pop().map(|(_, connection)| connection);
        idle.unwrap_or_else(|| self.open(&node.info, AsyncConnectionConfig::new()))
    }

    /// The primary that the Sentinels name, or `last` if no Sentinel answers within an eighth of the response limit. One
    /// lookup serves all callers that ask at the same time.
    async fn primary(self: &Arc<Self>, last: Option<Arc<Node>>) -> RedisResult<Arc<Node>> {
        let limit = self.settings.response_limit;
        let begin = || {
            let inner = Arc::clone(self);
            self.spawn(async move {
                let found = within(limit, inner.find_primary()).await;
                *locked(&inner.lookup) = None;
                found
            })
        };
        let lookup = locked(&self.lookup).get_or_insert_with(begin).clone();
        // The lookup goes on in the background, so a late answer serves the next attempt.
        let found = within(if last.is_some() { limit / 8 } else { limit }, lookup).await;
        found.or_else(|error| last.ok_or(error))
    }

    /// Asks the Sentinels for the primary. If it has changed, wakes the renewals of the locks on the former primary.
    async fn find_primary(&self) -> RedisResult<Arc<Node>> {
        let Address::Sentinels { sentinels, name, server } = &self.address else { return Err(timed_out()) };
        let asked = sentinels.iter().map(|sentinel| {
            let asking = async move {
                let mut sentinel = self.open(sentinel, AsyncConnectionConfig::new()).await?;
                let query = cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(name).to_owned();
                let address: Option<(String, u16)> = query.query_async(&mut sentinel).await?;
                address.ok_or_else(|| {
                    let kind = ErrorKind::MasterNameNotFoundBySentinel;
                    RedisError::from((kind, "the Sentinel knows no primary by that name"))
                })
            };
            asking.boxed()
        });
        let ((host, port), _) = select_ok(asked).await?;
        let primary = self.node(with_host_and_port(server, &host, port));
        if self.assign(&[], &primary).is_some_and(|former| !Arc::ptr_eq(&former, &primary)) {
            self.broken.send_replace(());
        }
        Ok(primary)
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Client").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Closes the connections that were idle for [`IDLE_LIMIT`], until the node is dropped.
async fn close_idle(node: Weak<Node>) {
    while let Some(node) = node.upgrade() {
        locked(&node.idle).retain(|(since, _)| since.elapsed() < IDLE_LIMIT);
        drop(node);
        sleep(IDLE_LIMIT).await;
    }
}

/// The result of `work`, or an error when `work` takes longer than `limit`. The first poll creates no timer, because the
/// first poll of a release may happen outside a runtime.
pub(crate) async fn within<T>(limit: Duration, work: impl Future<Output = RedisResult<T>>) -> RedisResult<T> {
    let mut work = pin!(work);
    if let Poll::Ready(result) = poll!(&mut work) {
        return result;
    }
    yield_now().await;
    timeout(limit, work).await.unwrap_or_else(|_| Err(timed_out()))
}

/// Locks a mutex, even if a thread has panicked while it held the mutex. No panic can leave the values in these mutexes
/// half changed.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn timed_out() -> RedisError {
    RedisError::from(io::Error::from(io::ErrorKind::TimedOut))
}
