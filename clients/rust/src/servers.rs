//! Which server serves a key, and the connections to it.
//!
//! Each node has one connection that all short requests share, and some that stand by for whoever waits: a connection
//! that waits can do nothing else. What [`Attempts`] learn of where a key is, is kept here for the next one.

mod attempts;

pub(crate) use attempts::{Attempts, Lane, passes};

use crate::address::{Address, Place, elsewhere};
use crate::error::Error;
use crate::request::{millis, read};
use crate::settings::Settings;
use futures_util::future::select_ok;
use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, ErrorKind, ProtocolVersion, PushInfo,
    PushKind, RedisError, Value,
};
use socket2::TcpKeepalive;
use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::time::timeout;

/// How many connections stand by at each node for those who wait next.
const SPARE: usize = 16;

/// A connection on which nothing comes is probed after so long, and then four times as often: nobody waits for ever
/// on one that is dead.
const PROBED_AFTER: Duration = Duration::from_secs(12);

/// A server where somebody waits is asked after so many response limits whether it is there: one that stands still keeps
/// its connections.
const SILENCE: u32 = 6;

/// So often at most it is asked anew where a key is, while a server serves it only later.
const DOUBT: Duration = Duration::from_secs(1);

pub(crate) struct Servers {
    place: Place,
    pub(crate) settings: Settings,
    nodes: Mutex<HashMap<String, Arc<Node>>>,
    /// By slot; slot 0 stands for all where there is no cluster.
    homes: Mutex<HashMap<u16, Arc<Node>>>,
    turn: AtomicUsize,
    /// The last time that Sentinels were asked in vain.
    asked: tokio::sync::Mutex<Failure>,
    /// When it was last doubted that a server which answers is the one to be asked.
    doubted: Mutex<Option<Instant>>,
    on_break: Arc<dyn Fn() + Send + Sync>,
}

struct Node {
    info: ConnectionInfo,
    shared: tokio::sync::Mutex<Slot>,
    spare: Mutex<Vec<MultiplexedConnection>>,
}

/// Where the shared connection is, if there is one.
#[derive(Default)]
struct Slot {
    shared: Option<Shared>,
    failure: Failure,
}

/// The last failure of what many may want at a time and only one of them tries. It holds for all who have waited for
/// that one.
#[derive(Default)]
struct Failure(Option<(Instant, Error)>);

#[derive(Clone)]
struct Shared {
    id: u64,
    connection: MultiplexedConnection,
}

/// A connection of one's own. It closes when it is dropped, which takes whoever waits on it out of the queue.
pub(crate) struct Line {
    node: Arc<Node>,
    connection: MultiplexedConnection,
}

impl Servers {
    pub(crate) fn new(
        Address(place): Address,
        settings: Settings,
        on_break: impl Fn() + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        let some = match &place {
            Place::Server(_) => true,
            Place::Sentinels { sentinels, .. } => !sentinels.is_empty(),
            Place::Cluster(nodes) => !nodes.is_empty(),
        };
        if !some {
            return Err(Error::Invalid("the address names no server"));
        }
        Ok(Self {
            place,
            settings,
            nodes: Mutex::default(),
            homes: Mutex::default(),
            turn: AtomicUsize::new(0),
            asked: tokio::sync::Mutex::default(),
            doubted: Mutex::default(),
            on_break: Arc::new(on_break),
        })
    }

    /// Keeps a line for whoever waits next. Nothing may be under way on it.
    pub(crate) fn put_back(&self, line: Line) {
        let mut spare = locked(&line.node.spare);
        if spare.len() < SPARE {
            spare.push(line.connection);
        }
    }

    /// Sees that there is a server that answers.
    pub(crate) async fn reach(&self) -> Result<(), Error> {
        let mut attempts = self.attempts(b"", Instant::now() + self.settings.patience);
        let limit = Some(self.settings.response_limit);
        while let Err(setback) = attempts.send(&mut Lane::Shared, &redis::cmd("PING"), limit).await {
            attempts.after(setback).await?;
        }
        Ok(())
    }

    /// All primaries, as a server or a Sentinel tells.
    pub(crate) async fn primaries(&self) -> Result<Vec<ConnectionInfo>, Error> {
        let mut attempts = self.attempts(b"", Instant::now() + self.settings.patience);
        let limit = Some(self.settings.response_limit);
        match &self.place {
            Place::Server(info) => return Ok(vec![info.clone()]),
            Place::Cluster(_) => {}
            Place::Sentinels { .. } => loop {
                match self.home(b"").await {
                    Ok(node) => return Ok(vec![node.info.clone()]),
                    Err(error) => {
                        let setback = attempts.setback(None, error);
                        attempts.after(setback).await?;
                    }
                }
            },
        }
        let slots = redis::cmd("CLUSTER").arg("SLOTS").to_owned();
        loop {
            // For what it says of itself, one has to know which node is asked. One that is silent is not asked again.
            let asked = self.home(b"").await?;
            locked(&self.homes).insert(self.slot(b""), Arc::clone(&asked));
            match attempts.send(&mut Lane::Shared, &slots, limit).await {
                Ok(reply) => return primaries_in(reply, &asked.info),
                Err(setback) => attempts.after(setback).await?,
            }
        }
    }

    /// Where `key` is believed to be.
    async fn home(&self, key: &[u8]) -> Result<Arc<Node>, Error> {
        let slot = self.slot(key);
        let known = locked(&self.homes).get(&slot).cloned();
        if let Some(node) = known {
            return Ok(node);
        }
        match &self.place {
            Place::Server(info) => {
                let node = self.node(info.clone());
                locked(&self.homes).insert(slot, Arc::clone(&node));
                Ok(node)
            }
            Place::Sentinels { sentinels, name, server } => {
                let begun = Instant::now();
                let mut failure = self.asked.lock().await;
                let known = locked(&self.homes).get(&slot).cloned();
                if let Some(node) = known {
                    return Ok(node);
                }
                failure.shared_since(begun)?;
                let asked = sentinels.iter().map(|sentinel| Box::pin(self.primary(sentinel, name, server)));
                let (node, _) = select_ok(asked).await.map_err(|error| failure.note(error))?;
                locked(&self.homes).insert(slot, Arc::clone(&node));
                Ok(node)
            }
            // Any node knows. They are asked in turn, as some may be down.
            Place::Cluster(seeds) => {
                let turn = self.turn.fetch_add(1, Ordering::Relaxed);
                let known = locked(&self.nodes);
                let all = seeds.iter().chain(known.values().map(|node| &node.info));
                let info = all.cycle().nth(turn % (seeds.len() + known.len())).cloned();
                drop(known);
                info.map(|info| self.node(info)).ok_or(Error::Invalid("a cluster without nodes"))
            }
        }
    }

    /// The server that one Sentinel takes for the primary, if that takes itself for one too.
    async fn primary(
        &self,
        sentinel: &ConnectionInfo,
        name: &str,
        server: &ConnectionInfo,
    ) -> Result<Arc<Node>, Error> {
        let mut asked = self.connect(sentinel.clone(), None).await?;
        let question = redis::cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(name).to_owned();
        let told: Option<(String, u16)> = question.query_async(&mut asked).await.map_err(Error::silence)?;
        let (host, port) = told.ok_or_else(|| {
            let kind = ErrorKind::MasterNameNotFoundBySentinel;
            Error::Connection(RedisError::from((kind, "the Sentinel knows no primary by that name")))
        })?;
        let node = self.node(elsewhere(server, &host, port));
        let mut shared = self.shared(&node).await?;
        let role = redis::cmd("ROLE");
        let role = role.query_async(&mut shared.connection);
        // All of this is given one response limit, and a connection that is found dead has to be told of within that.
        match timeout(self.settings.response_limit / 2, role).await.unwrap_or_else(|_| Err(late())) {
            Ok(Value::Array(parts)) if parts.first() == Some(&Value::BulkString(b"master".to_vec())) => {
                Ok(node)
            }
            Ok(_) => Err(Error::Unreachable(io::Error::other("the server is not the primary yet").into())),
            Err(error) => {
                node.forget(shared.id).await;
                Err(Error::silence(error))
            }
        }
    }

    fn node(&self, info: ConnectionInfo) -> Arc<Node> {
        let name = info.addr().to_string();
        let fresh =
            || Arc::new(Node { info, shared: tokio::sync::Mutex::default(), spare: Mutex::default() });
        Arc::clone(locked(&self.nodes).entry(name).or_insert_with(fresh))
    }

    fn slot(&self, key: &[u8]) -> u16 {
        match &self.place {
            Place::Cluster(_) => slot_of(key),
            Place::Server(_) | Place::Sentinels { .. } => 0,
        }
    }

    async fn shared(&self, node: &Node) -> Result<Shared, Error> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let begun = Instant::now();
        let mut slot = node.shared.lock().await;
        if let Some(shared) = &slot.shared {
            return Ok(shared.clone());
        }
        slot.failure.shared_since(begun)?;
        let connecting = self.connect(node.info.clone(), Some(Arc::clone(&self.on_break)));
        let connection = connecting.await.map_err(|error| slot.failure.note(error))?;
        let fresh = Shared { id: NEXT.fetch_add(1, Ordering::Relaxed), connection };
        Ok(slot.shared.insert(fresh).clone())
    }

    async fn line(&self, node: &Arc<Node>) -> Result<Line, Error> {
        let spare = locked(&node.spare).pop();
        let connection = match spare {
            Some(connection) => connection,
            None => self.connect(node.info.clone(), None).await?,
        };
        Ok(Line { node: Arc::clone(node), connection })
    }

    /// Connects, and lets `on_break` know when the connection breaks.
    async fn connect(
        &self,
        info: ConnectionInfo,
        on_break: Option<Arc<dyn Fn() + Send + Sync>>,
    ) -> Result<MultiplexedConnection, Error> {
        // By RESP3 the connection tells of its own end.
        let redis = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        let redis = redis.set_lib_name("lockward-client", env!("CARGO_PKG_VERSION"));
        let probes = TcpKeepalive::new().with_time(PROBED_AFTER).with_interval(PROBED_AFTER / 4);
        let tcp = TcpSettings::default().set_nodelay(true).set_keepalive(probes);
        let info = info.set_redis_settings(redis).set_tcp_settings(tcp);
        let limit = self.settings.response_limit;
        let config =
            AsyncConnectionConfig::new().set_connection_timeout(Some(limit)).set_response_timeout(None);
        let config = match on_break {
            Some(on_break) => config.set_push_sender(move |push: PushInfo| {
                if push.kind == PushKind::Disconnection {
                    on_break();
                }
                Ok::<(), redis::aio::SendError>(())
            }),
            None => config,
        };
        let connecting =
            async { Client::open(info)?.get_multiplexed_async_connection_with_config(&config).await };
        timeout(limit, connecting).await.unwrap_or_else(|_| Err(late())).map_err(Error::silence)
    }

    /// Ends when `node` does not answer any more, or another server is known to have taken its place.
    async fn silence(&self, node: &Arc<Node>) -> RedisError {
        loop {
            tokio::time::sleep(self.settings.response_limit * SILENCE).await;
            match self.ping(node).await {
                Err(Error::Unreachable(error)) if error.is_timeout() || error.is_connection_refusal() => {
                    return error;
                }
                // Whatever else keeps it from being asked, as want of room or a new password, tells nothing.
                _ => {}
            }
            if matches!(self.place, Place::Sentinels { .. })
                && locked(&self.homes).values().any(|home| !Arc::ptr_eq(home, node))
            {
                return late();
            }
        }
    }

    async fn ping(&self, node: &Arc<Node>) -> Result<(), Error> {
        let mut shared = self.shared(node).await?;
        let asked = redis::cmd("PING");
        let reply =
            timeout(self.settings.response_limit, shared.connection.send_packed_command(&asked)).await;
        let reply = reply.unwrap_or_else(|_| Err(late())).map_err(Error::silence);
        if let Err(Error::Unreachable(_)) = reply {
            node.forget(shared.id).await;
        }
        reply.map(drop)
    }

    /// Asks anew, before long, whether it is `node` that serves what it serves only later.
    fn doubt(&self, node: &Arc<Node>) {
        let mut doubted = locked(&self.doubted);
        if doubted.is_none_or(|at| at.elapsed() > DOUBT) {
            *doubted = Some(Instant::now());
            self.leave(node);
        }
    }

    /// Believes no longer that `node` serves anything.
    fn leave(&self, node: &Arc<Node>) {
        locked(&node.spare).clear();
        locked(&self.homes).retain(|_, home| !Arc::ptr_eq(home, node));
    }
}

impl Node {
    /// Lets the shared connection go, unless it is another one by now.
    async fn forget(&self, id: u64) {
        let mut slot = self.shared.lock().await;
        if slot.shared.as_ref().is_some_and(|shared| shared.id == id) {
            slot.shared = None;
        }
    }
}

impl Failure {
    /// # Errors
    /// The failure, if it came since then.
    fn shared_since(&self, begun: Instant) -> Result<(), Error> {
        match &self.0 {
            Some((came, error)) if *came >= begun => Err(error.clone()),
            _ => Ok(()),
        }
    }

    fn note(&mut self, error: Error) -> Error {
        self.0 = Some((Instant::now(), error.clone()));
        error
    }
}

impl Line {
    /// How many replicas have heard within a time of all that was written before the last command on this line.
    pub(crate) async fn wait(
        &mut self,
        count: usize,
        within: Duration,
        response: Duration,
    ) -> Result<usize, Error> {
        // 0 would wait without limit.
        let limit = millis(within).max(1);
        let wait = redis::cmd("WAIT").arg(count).arg(limit).to_owned();
        let reply =
            timeout(within.saturating_add(response), self.connection.send_packed_command(&wait)).await;
        let reply = reply.unwrap_or_else(|_| Err(late())).map_err(Error::silence)?;
        if let Value::ServerError(said) = &reply {
            return Err(Error::said(said));
        }
        read(reply)
    }
}

/// The slot of a key in a cluster: that of what stands between the first `{` and the next `}`, if anything does.
fn slot_of(key: &[u8]) -> u16 {
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let rest = key.get(open + 1..)?;
        let close = rest.iter().position(|byte| *byte == b'}')?;
        rest.get(..close).filter(|tag| !tag.is_empty())
    });
    crc16::State::<crc16::XMODEM>::calculate(tag.unwrap_or(key)) % 16_384
}

/// The primaries in a reply to CLUSTER SLOTS, each once.
fn primaries_in(reply: Value, asked: &ConnectionInfo) -> Result<Vec<ConnectionInfo>, Error> {
    let ranges: Vec<Vec<Value>> = read(reply)?;
    let mut found: Vec<ConnectionInfo> = Vec::new();
    for range in ranges {
        let Some(primary) = range.into_iter().nth(2) else { continue };
        let parts: Vec<Value> = read(primary)?;
        let mut parts = parts.into_iter();
        let (Some(host), Some(port)) = (parts.next(), parts.next()) else { continue };
        let (host, port): (Option<String>, u16) = (read(host)?, read(port)?);
        let info = elsewhere(asked, host_of(host.as_deref(), asked), port);
        if found.iter().all(|other| other.addr() != info.addr()) {
            found.push(info);
        }
    }
    Ok(found)
}

/// The host that a node tells of itself or another. One that does not know its own name means the one it was reached by.
fn host_of<'a>(told: Option<&'a str>, asked: &'a ConnectionInfo) -> &'a str {
    match (told, asked.addr()) {
        (None | Some("" | "?"), ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. }) => host,
        (host, _) => host.unwrap_or_default(),
    }
}

fn late() -> RedisError {
    io::Error::from(io::ErrorKind::TimedOut).into()
}

/// What is kept under these locks is whole at any time.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::{host_of, slot_of};
    use redis::ConnectionInfo;

    #[test]
    fn a_node_that_does_not_know_its_name_is_where_it_was_asked() {
        let asked: ConnectionInfo = "redis://there:7000".parse().unwrap();
        for (told, host) in
            [(None, "there"), (Some(""), "there"), (Some("?"), "there"), (Some("other"), "other")]
        {
            assert_eq!(host_of(told, &asked), host, "{told:?}");
        }
    }

    #[test]
    fn slots_go_by_the_tag() {
        // As CLUSTER KEYSLOT tells them.
        let table: [(&[u8], u16); 7] = [
            (b"123456789", 12739),
            (b"k", 7629),
            (b"{k}:a", 7629),
            (b"a{k}{b}", 7629),
            (b"{}k", 2865),
            (b"{k", 2414),
            (b"", 0),
        ];
        for (key, slot) in table {
            assert_eq!(slot_of(key), slot, "{}", String::from_utf8_lossy(key));
        }
    }
}
