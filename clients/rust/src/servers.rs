//! Which server serves a key.

use crate::address::{Address, Deployment, with_host_and_port};
use crate::cluster::slot_of;
use crate::connections::{Connector, LastFailure, Node, locked};
use crate::error::Error;
use crate::settings::Settings;
use crate::time::timed_out;
use futures_util::future::select_ok;
use redis::{ConnectionInfo, ErrorKind, RedisError, Value, cmd};
use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// While a request waits, the client probes its server each time so many response limits have passed.
const PROBE_INTERVAL: u32 = 6;

/// How often, at most, the client looks for the primary again while a server answers that it cannot serve yet.
const RECHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The servers of one deployment, and what is known about which of them serves a key.
pub(crate) struct Servers {
    pub(crate) deployment: Deployment,
    pub(crate) settings: Settings,
    pub(crate) connector: Connector,
    nodes: Mutex<HashMap<String, Arc<Node>>>,
    /// Outside a cluster all keys are in slot 0.
    nodes_by_slot: Mutex<HashMap<u16, Arc<Node>>>,
    /// Counts the requests that could go to any node of a cluster.
    next_seed: AtomicUsize,
    sentinel_failure: tokio::sync::Mutex<LastFailure>,
    last_recheck: Mutex<Option<Instant>>,
}

impl Servers {
    /// `on_break` is called when a shared connection breaks.
    pub(crate) fn new(
        Address(deployment): Address,
        settings: Settings,
        on_break: impl Fn() + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        let is_empty = match &deployment {
            Deployment::Server(_) => false,
            Deployment::Sentinels { sentinels, .. } => sentinels.is_empty(),
            Deployment::Cluster(nodes) => nodes.is_empty(),
        };
        if is_empty {
            return Err(Error::Invalid("the address names no server"));
        }
        Ok(Self {
            deployment,
            connector: Connector::new(settings.response_limit, on_break),
            settings,
            nodes: Mutex::default(),
            nodes_by_slot: Mutex::default(),
            next_seed: AtomicUsize::new(0),
            sentinel_failure: tokio::sync::Mutex::default(),
            last_recheck: Mutex::default(),
        })
    }

    /// The node that serves a key, as far as is known.
    pub(crate) async fn node_for(&self, key: &[u8]) -> Result<Arc<Node>, Error> {
        let slot = self.slot(key);
        if let Some(node) = self.known_node(slot) {
            return Ok(node);
        }
        match &self.deployment {
            Deployment::Server(info) => Ok(self.assign(slot, self.node(info.clone()))),
            Deployment::Sentinels { sentinels, name, server } => {
                let begun = Instant::now();
                let mut failure = self.sentinel_failure.lock().await;
                if let Some(node) = self.known_node(slot) {
                    return Ok(node);
                }
                failure.check_since(begun)?;
                let asked = sentinels.iter().map(|sentinel| Box::pin(self.primary(sentinel, name, server)));
                let (node, _) = select_ok(asked).await.map_err(|error| failure.note(error))?;
                Ok(self.assign(slot, node))
            }
            // Any node redirects to the right one. Each request tries the next, as some may be down.
            Deployment::Cluster(seeds) => {
                let count = self.next_seed.fetch_add(1, Ordering::Relaxed);
                let known = locked(&self.nodes);
                let all = seeds.iter().chain(known.values().map(|node| &node.info));
                let info = all.cycle().nth(count % (seeds.len() + known.len())).cloned();
                drop(known);
                info.map(|info| self.node(info)).ok_or(Error::Invalid("a cluster without nodes"))
            }
        }
    }

    /// The primary that one Sentinel names, if it replies that it is one.
    async fn primary(
        &self,
        sentinel: &ConnectionInfo,
        name: &str,
        server: &ConnectionInfo,
    ) -> Result<Arc<Node>, Error> {
        let mut sentinel = self.connector.connect(sentinel).await?;
        let query = cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(name).to_owned();
        let address: Option<(String, u16)> =
            query.query_async(&mut sentinel).await.map_err(Error::from_redis)?;
        let (host, port) = address.ok_or_else(|| {
            let kind = ErrorKind::MasterNameNotFoundBySentinel;
            Error::Connection(RedisError::from((kind, "the Sentinel knows no primary by that name")))
        })?;
        let node = self.node(with_host_and_port(server, &host, port));
        // Half the limit: the caller gives the whole lookup one response limit, and a dead connection is closed before.
        let role = node.request(&self.connector, &cmd("ROLE"), self.settings.response_limit / 2).await?;
        let master = Value::BulkString(b"master".to_vec());
        match role.as_sequence().and_then(<[_]>::first) {
            Some(role) if *role == master => Ok(node),
            _ => Err(Error::Unreachable(io::Error::other("the server is not the primary yet").into())),
        }
    }

    pub(crate) fn node(&self, info: ConnectionInfo) -> Arc<Node> {
        let name = info.addr().to_string();
        Arc::clone(locked(&self.nodes).entry(name).or_insert_with(|| Arc::new(Node::new(info))))
    }

    pub(crate) fn slot(&self, key: &[u8]) -> u16 {
        match &self.deployment {
            Deployment::Cluster(_) => slot_of(key),
            Deployment::Server(_) | Deployment::Sentinels { .. } => 0,
        }
    }

    fn known_node(&self, slot: u16) -> Option<Arc<Node>> {
        locked(&self.nodes_by_slot).get(&slot).cloned()
    }

    /// Notes which node serves a slot.
    pub(crate) fn assign(&self, slot: u16, node: Arc<Node>) -> Arc<Node> {
        locked(&self.nodes_by_slot).insert(slot, Arc::clone(&node));
        node
    }

    /// Stops sending to `node`, until it is found again as the one that serves a key.
    pub(crate) fn disconnect(&self, node: &Arc<Node>) {
        node.close_idle();
        locked(&self.nodes_by_slot).retain(|_, known| !Arc::ptr_eq(known, node));
    }

    /// Looks for the primary again before the next request, unless that was done within [`RECHECK_INTERVAL`].
    pub(crate) fn recheck(&self, node: &Arc<Node>) {
        let mut last = locked(&self.last_recheck);
        if last.is_none_or(|at| at.elapsed() > RECHECK_INTERVAL) {
            *last = Some(Instant::now());
            self.disconnect(node);
        }
    }

    /// Probes a node while a request waits on it. Returns when the node does not answer any more, or when Sentinels have
    /// named another primary. A stopped server keeps its connections open, so these alone do not tell.
    pub(crate) async fn wait_until_gone(&self, node: &Arc<Node>) -> Error {
        loop {
            tokio::time::sleep(self.settings.response_limit * PROBE_INTERVAL).await;
            match node.request(&self.connector, &cmd("PING"), self.settings.response_limit).await {
                Err(Error::Unreachable(error)) if error.is_timeout() || error.is_connection_refusal() => {
                    return Error::Unreachable(error);
                }
                // Other errors, such as too many clients or a new password, do not mean that the node is gone.
                _ => {}
            }
            if matches!(self.deployment, Deployment::Sentinels { .. })
                && locked(&self.nodes_by_slot).values().any(|primary| !Arc::ptr_eq(primary, node))
            {
                return timed_out();
            }
        }
    }
}
