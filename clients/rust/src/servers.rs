//! What all handles of one client share: the servers, which of them serves a key, and the connections to them.
//!
//! All short requests to a node share one connection. A connection on which a request waits can do nothing else, so each
//! waiter has one of its own.

use crate::address::{Address, host_or_same, slot_of, with_host_and_port};
use crate::error::Error;
use crate::mutex::locked;
use crate::renewals::{self, Renewals};
use crate::settings::Settings;
use futures_util::future::{BoxFuture, FutureExt, Shared, select_ok};
use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{
    AsyncConnectionConfig, Cmd, ConnectionInfo, ErrorKind, ProtocolVersion, PushInfo, PushKind, RedisError,
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
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};
use uuid::Uuid;

/// How many idle connections each node keeps for the next waiters, and for how long.
const MAX_IDLE: usize = 16;
const IDLE_LIMIT: Duration = Duration::from_secs(5);

/// A connection that is open, or being opened by whoever came first.
pub(crate) type SharedConnection = Shared<BoxFuture<'static, RedisResult<MultiplexedConnection>>>;

/// The reply to a command that is sent.
pub(crate) type Reply = BoxFuture<'static, RedisResult<Value>>;

/// A lookup of the primary that all who need it await.
type Lookup = Shared<BoxFuture<'static, RedisResult<Arc<Node>>>>;

/// What all handles of one client share.
pub(crate) struct Inner {
    address: Address,
    pub(crate) settings: Settings,
    pub(crate) runtime: Handle,
    /// One permit for each connection that may wait in a queue.
    pub(crate) wait_permits: Semaphore,
    /// How many jobs are in progress.
    pub(crate) jobs: watch::Sender<usize>,
    pub(crate) renewals: Arc<Renewals>,
    renewer: AbortHandle,
    id: Uuid,
    next_owner: AtomicU64,
    nodes: Mutex<HashMap<String, Arc<Node>>>,
    /// The node of each slot that the client knows. Without a cluster all keys are in slot 0.
    routes: Mutex<HashMap<u16, Arc<Node>>>,
    last_primary: Mutex<Option<Arc<Node>>>,
    lookup: Mutex<Option<Lookup>>,
}

/// A server, and the connections to it.
pub(crate) struct Node {
    info: ConnectionInfo,
    shared: Mutex<Option<SharedConnection>>,
    idle: Mutex<Idle>,
    /// When it did not answer.
    silent_since: Mutex<Option<Instant>>,
}

/// Connections for the next waiters.
#[derive(Default)]
struct Idle {
    connections: Vec<(Instant, MultiplexedConnection)>,
    /// A task closes those that nobody has used for some time.
    is_watched: bool,
}

/// A connection for one request that waits. Dropping it closes it, and the server notices that the waiter has left.
pub(crate) struct OwnConnection {
    pub(crate) node: Arc<Node>,
    pub(crate) connection: MultiplexedConnection,
}

impl Inner {
    /// Starts the task that renews leases, too.
    pub(crate) fn new(address: Address, settings: Settings) -> Result<Arc<Self>, Error> {
        let runtime =
            Handle::try_current().map_err(|_| Error::invalid("create the client in a tokio runtime"))?;
        let renewals = Arc::new(Renewals::default());
        let renewer = runtime.spawn(renewals::run(Arc::clone(&renewals)));
        Ok(Arc::new(Self {
            address,
            wait_permits: Semaphore::new(settings.waiting_connections.min(Semaphore::MAX_PERMITS)),
            settings,
            jobs: watch::Sender::new(0),
            renewals,
            renewer: renewer.abort_handle(),
            runtime,
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

    /// Finishes the work of a caller that has left.
    pub(crate) fn spawn_job(self: &Arc<Self>, job: impl Future<Output = ()> + Send + 'static) {
        self.jobs.send_modify(|count| *count += 1);
        let client = Arc::clone(self);
        self.runtime.spawn(async move {
            job.await;
            client.jobs.send_modify(|count| *count -= 1);
        });
    }

    pub(crate) fn slot(&self, key: &[u8]) -> u16 {
        if matches!(self.address, Address::Cluster(_)) { slot_of(key) } else { 0 }
    }

    /// The node that serves a slot, as far as is known.
    pub(crate) async fn node_for(self: &Arc<Self>, slot: u16) -> RedisResult<Arc<Node>> {
        if let Some(node) = self.route(slot) {
            return Ok(node);
        }
        match &self.address {
            Address::Server(info) => Ok(self.assign(slot, self.node(info.clone()))),
            Address::Sentinels { .. } => self.primary().await,
            // Any node redirects to the right one. Those that were silent come last.
            Address::Cluster(seeds) => {
                let seeds: Vec<_> = seeds.iter().map(|info| self.node(info.clone())).collect();
                let known: Vec<_> = locked(&self.nodes).values().cloned().collect();
                let node = seeds.into_iter().chain(known).min_by_key(|node| *locked(&node.silent_since));
                node.ok_or_else(timed_out)
            }
        }
    }

    pub(crate) fn route(&self, slot: u16) -> Option<Arc<Node>> {
        locked(&self.routes).get(&slot).cloned()
    }

    /// Notes which node serves a slot.
    pub(crate) fn assign(&self, slot: u16, node: Arc<Node>) -> Arc<Node> {
        locked(&self.routes).insert(slot, Arc::clone(&node));
        node
    }

    /// Looks for the node of its slots again before the next request.
    pub(crate) fn forget_routes_to(&self, node: &Arc<Node>) {
        locked(&self.routes).retain(|_, known| !Arc::ptr_eq(known, node));
    }

    /// Notes that a node did not answer a request, which was sent on its `shared` connection if there is one.
    pub(crate) fn note_silence(&self, node: &Arc<Node>, shared: Option<&SharedConnection>) {
        *locked(&node.silent_since) = Some(Instant::now());
        self.forget_routes_to(node);
        if let Some(shared) = shared {
            let mut open = locked(&node.shared);
            // Its successor, if there is one already, stays.
            if open.as_ref().is_some_and(|open| open.ptr_eq(shared)) {
                *open = None;
            }
        }
        locked(&node.idle).connections.clear();
    }

    /// The slot and the node in a redirect, such as `MOVED 3999 127.0.0.1:6381`, that the node `from` has replied.
    pub(crate) fn redirect(&self, error: &RedisError, from: &Node) -> Option<(u16, Arc<Node>)> {
        let (address, slot) = error.redirect_node()?;
        let (host, port) = address.rsplit_once(':')?;
        let info = with_host_and_port(&from.info, host_or_same(host, &from.info), port.parse().ok()?);
        Some((slot, self.node(info)))
    }

    fn node(&self, info: ConnectionInfo) -> Arc<Node> {
        let mut nodes = locked(&self.nodes);
        Arc::clone(nodes.entry(info.addr().to_string()).or_insert_with(|| {
            Arc::new(Node {
                info,
                shared: Mutex::default(),
                idle: Mutex::default(),
                silent_since: Mutex::default(),
            })
        }))
    }

    /// The shared connection to a node. It is opened if there is none.
    pub(crate) fn shared(self: &Arc<Self>, node: &Arc<Node>) -> SharedConnection {
        let mut shared = locked(&node.shared);
        // If the last attempt to open it has failed, open a new one.
        if let Some(open) = shared.as_ref().filter(|open| !matches!(open.peek(), Some(Err(_)))) {
            return open.clone();
        }
        let (client, at) = (Arc::downgrade(self), Arc::downgrade(node));
        let config = AsyncConnectionConfig::new().set_push_sender(move |push: PushInfo| {
            if push.kind == PushKind::Disconnection
                && let (Some(client), Some(node)) = (client.upgrade(), at.upgrade())
            {
                client.renewals.renew_now(|slot| client.is_at(slot, &node));
            }
            Ok::<(), redis::aio::SendError>(())
        });
        // The client's runtime opens it: it goes on if the caller leaves, and if the caller's runtime stands still.
        let task = self.runtime.spawn(open(node.info.clone(), config, self.settings.response_limit));
        let opening = async move { task.await.unwrap_or_else(|_| Err(timed_out())) };
        shared.insert(opening.boxed().shared()).clone()
    }

    /// Sends a command at once if the shared connection to the node of a slot is open, or on `connection`. So it comes
    /// before what the caller sends later. The future is the reply, and needs no awaiting for the command to be sent.
    pub(crate) fn send_now(
        &self,
        slot: u16,
        connection: Option<SharedConnection>,
        cmd: Cmd,
    ) -> Option<Reply> {
        let connection = connection.or_else(|| locked(&self.route(slot)?.shared).clone())?;
        let mut connection = connection.peek()?.as_ref().ok()?.clone();
        let mut sending = async move { connection.send_packed_command(&cmd).await }.boxed();
        match (&mut sending).now_or_never() {
            None => Some(sending),
            Some(_) => None,
        }
    }

    fn is_at(&self, slot: u16, node: &Arc<Node>) -> bool {
        self.route(slot).is_none_or(|known| Arc::ptr_eq(&known, node))
    }

    /// A connection to a node for a request that waits.
    pub(crate) async fn own_connection(&self, node: Arc<Node>) -> RedisResult<OwnConnection> {
        let idle = locked(&node.idle).connections.pop();
        let connection = match idle {
            Some((_, connection)) => connection,
            None => {
                let limit = self.settings.response_limit;
                open(node.info.clone(), AsyncConnectionConfig::new(), limit).await?
            }
        };
        Ok(OwnConnection { node, connection })
    }

    /// Keeps a connection for the next waiter. No request may be in progress on it.
    pub(crate) fn keep_idle(&self, own: OwnConnection) {
        let mut idle = locked(&own.node.idle);
        if idle.connections.len() < MAX_IDLE {
            idle.connections.push((Instant::now(), own.connection));
        }
        if !idle.is_watched {
            idle.is_watched = true;
            self.runtime.spawn(close_idle(Arc::downgrade(&own.node)));
        }
    }

    /// The primary that the Sentinels name. Many may ask at the same time; one lookup serves all.
    async fn primary(self: &Arc<Self>) -> RedisResult<Arc<Node>> {
        let inner = Arc::clone(self);
        let lookup = locked(&self.lookup)
            .get_or_insert_with(|| {
                let lookup = async move {
                    let found = timeout(inner.settings.response_limit, inner.find_primary()).await;
                    let found = found.unwrap_or_else(|_| Err(timed_out()));
                    *locked(&inner.lookup) = None;
                    let primary = found?;
                    inner.assign(0, Arc::clone(&primary));
                    let last = locked(&inner.last_primary).replace(Arc::clone(&primary));
                    if last.is_some_and(|last| !Arc::ptr_eq(&last, &primary)) {
                        inner.renewals.renew_now(|_| true);
                    }
                    Ok(primary)
                };
                let task = self.runtime.spawn(lookup);
                async move { task.await.unwrap_or_else(|_| Err(timed_out())) }.boxed().shared()
            })
            .clone();
        lookup.await
    }

    async fn find_primary(self: &Arc<Self>) -> RedisResult<Arc<Node>> {
        let Address::Sentinels { sentinels, name, server } = &self.address else { return Err(timed_out()) };
        let asked = sentinels.iter().map(|sentinel| self.ask_sentinel(sentinel, name, server).boxed());
        // The last primary counts only while the Sentinels are silent.
        let last = locked(&self.last_primary).clone().map(|last| {
            let check = async {
                sleep(self.settings.response_limit / 8).await;
                self.check_primary(last).await
            };
            check.boxed()
        });
        Ok(select_ok(asked.chain(last)).await?.0)
    }

    async fn ask_sentinel(
        self: &Arc<Self>,
        sentinel: &ConnectionInfo,
        name: &str,
        server: &ConnectionInfo,
    ) -> RedisResult<Arc<Node>> {
        let config = AsyncConnectionConfig::new();
        let mut sentinel = open(sentinel.clone(), config, self.settings.response_limit).await?;
        let query = cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(name).to_owned();
        let address: Option<(String, u16)> = query.query_async(&mut sentinel).await?;
        let (host, port) = address.ok_or_else(|| {
            let kind = ErrorKind::MasterNameNotFoundBySentinel;
            RedisError::from((kind, "the Sentinel knows no primary by that name"))
        })?;
        self.check_primary(self.node(with_host_and_port(server, &host, port))).await
    }

    /// Returns `node` if it says that it is a primary.
    async fn check_primary(self: &Arc<Self>, node: Arc<Node>) -> RedisResult<Arc<Node>> {
        let shared = self.shared(&node);
        let asking = async { cmd("ROLE").query_async::<Value>(&mut shared.clone().await?).await };
        // Half the limit: the whole lookup has one.
        let role = timeout(self.settings.response_limit / 2, asking).await;
        let role = role.unwrap_or_else(|_| Err(timed_out())).inspect_err(|error| {
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

impl Drop for Inner {
    fn drop(&mut self) {
        self.renewer.abort();
    }
}

async fn open(
    info: ConnectionInfo,
    config: AsyncConnectionConfig,
    limit: Duration,
) -> RedisResult<MultiplexedConnection> {
    // With RESP3 the redis crate reports the end of a connection.
    let redis = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
    let redis = redis.set_lib_name("lockward-client", env!("CARGO_PKG_VERSION"));
    let info = info.set_redis_settings(redis).set_tcp_settings(TcpSettings::default().set_nodelay(true));
    let config = config.set_connection_timeout(Some(limit)).set_response_timeout(None);
    let client = redis::Client::open(info)?;
    let opening = client.get_multiplexed_async_connection_with_config(&config);
    timeout(limit, opening).await.unwrap_or_else(|_| Err(timed_out()))
}

async fn close_idle(node: Weak<Node>) {
    loop {
        sleep(IDLE_LIMIT).await;
        let Some(node) = node.upgrade() else { return };
        let mut idle = locked(&node.idle);
        idle.connections.retain(|(since, _)| since.elapsed() < IDLE_LIMIT);
        if idle.connections.is_empty() {
            idle.is_watched = false;
            return;
        }
    }
}

pub(crate) fn timed_out() -> RedisError {
    RedisError::from(io::Error::from(io::ErrorKind::TimedOut))
}
