//! Clusters, by default of three primaries with one replica each.

use crate::client::Client;
use crate::reply::Reply;
use crate::server::{Server, Setup};
use crate::wait::{DEADLINE, eventually, soon, within};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The number of slots.
const SLOTS: u16 = 16_384;
const PRIMARIES: u16 = 3;
/// How many keys one MIGRATE moves.
const BATCH: usize = 100;
/// How long one attempt to fail over may last. By then, the servers have given up an attempt that does not succeed.
const ATTEMPT: Duration = Duration::from_secs(6);
const HAND_OVER: Duration = Duration::from_secs(60);

/// The slot of a key.
pub fn slot_of(key: &str) -> u16 {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    let hashed = tag.filter(|tag| !tag.is_empty()).unwrap_or(key);
    let crc = hashed.bytes().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
        })
    });
    crc % SLOTS
}

/// Where a node redirects a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Redirection {
    /// The client must send the command to the owner of the slot.
    Moved(u16),
    /// The client must send ASKING and this one command to the node that imports the slot.
    Ask(u16),
}

impl Reply {
    /// The redirection, if the reply is a redirection.
    pub fn redirection(&self) -> Option<Redirection> {
        let Self::Error(text) = self else { return None };
        let mut words = text.split(' ');
        let word = words.next()?;
        let port = words.nth(1)?.rsplit(':').next()?.parse().ok()?;
        match word {
            "MOVED" => Some(Redirection::Moved(port)),
            "ASK" => Some(Redirection::Ask(port)),
            _ => None,
        }
    }
}

/// The nodes of a cluster, which all run on this machine.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<Server>,
}

impl Cluster {
    /// Starts three primaries with one replica each. Waits until all nodes agree about the cluster and every replica is
    /// in sync.
    #[track_caller]
    pub fn start() -> Self {
        Self::start_with(Setup::new())
    }

    /// Starts a cluster, as [`Cluster::start`] does, whose nodes have this setup.
    #[track_caller]
    pub fn start_with(setup: Setup) -> Self {
        Self::start_nodes(setup, PRIMARIES, PRIMARIES)
    }

    /// Starts three primaries without replicas.
    #[track_caller]
    pub fn start_without_replicas(setup: Setup) -> Self {
        Self::start_primaries(setup, PRIMARIES)
    }

    /// Starts this number of primaries without replicas.
    #[track_caller]
    pub fn start_primaries(setup: Setup, primaries: u16) -> Self {
        Self::start_nodes(setup, primaries, 0)
    }

    #[track_caller]
    fn start_nodes(setup: Setup, primaries: u16, replicas: u16) -> Self {
        let nodes: Vec<Server> = (0..primaries + replicas).map(|_| setup.clone().start_node()).collect();
        let mut clients: Vec<Client> = nodes.iter().map(Server::client).collect();
        for (number, client) in (0..primaries).zip(&mut clients) {
            let share = SLOTS.div_ceil(primaries);
            let (first, last) = (number * share, ((number + 1) * share).min(SLOTS) - 1);
            assert_eq!(client.call(format!("CLUSTER ADDSLOTSRANGE {first} {last}")), Reply::ok());
        }
        for (number, client) in (1..).zip(&mut clients) {
            assert_eq!(client.call(format!("CLUSTER SET-CONFIG-EPOCH {number}")), Reply::ok());
        }
        for (one, client) in clients.iter_mut().enumerate() {
            for other in &nodes[one + 1..] {
                other.meet(client);
            }
        }
        let cluster = Self { nodes };
        cluster.see_agreement();
        for (replica, primary) in cluster.nodes[usize::from(primaries)..].iter().zip(&cluster.nodes) {
            let answer = replica.client().call(format!("CLUSTER REPLICATE {}", primary.node_id()));
            assert_eq!(answer, Reply::ok());
        }
        for (replica, primary) in cluster.nodes[usize::from(primaries)..].iter().zip(&cluster.nodes) {
            replica.see_in_sync_with(primary);
        }
        cluster.see_agreement();
        cluster
    }

    /// Waits until all running nodes agree about the roles and the slots of all nodes.
    #[track_caller]
    pub fn see_agreement(&self) {
        let mut clients: Vec<Client> =
            self.nodes.iter().filter(|node| node.is_running()).map(Server::client).collect();
        eventually("the nodes agree", || {
            let mut views = clients.iter_mut().map(|client| {
                let up = client.call("CLUSTER INFO").text().contains("cluster_state:ok");
                up.then(|| view(&client.call("CLUSTER NODES").text())).filter(|view| {
                    view.len() == self.nodes.len() && view.iter().all(|(.., flags, _)| flags != "handshake")
                })
            });
            let first = views.next().flatten();
            first.is_some() && views.all(|view| view == first)
        });
    }

    /// All nodes.
    pub fn nodes(&self) -> &[Server] {
        &self.nodes
    }

    /// All nodes, so that a test can change one of them.
    pub fn nodes_mut(&mut self) -> &mut [Server] {
        &mut self.nodes
    }

    /// The nodes that report the role of a primary.
    #[track_caller]
    pub fn primaries(&self) -> Vec<&Server> {
        self.running().filter(|node| node.client().server_info("replication", "role") == "master").collect()
    }

    /// The primary that reports that it serves a slot.
    #[track_caller]
    pub fn owner(&self, slot: u16) -> &Server {
        let owner = self.running().find(|node| {
            let nodes = node.client().call("CLUSTER NODES").text();
            let me = nodes.lines().find(|line| line.contains("myself,master"));
            me.is_some_and(|line| slots(line).any(|(first, last)| (first..=last).contains(&slot)))
        });
        owner.unwrap_or_else(|| panic!("nobody serves slot {slot}"))
    }

    /// The primary that serves a key, and another primary.
    #[track_caller]
    pub fn owner_and_other(&self, key: &str) -> (&Server, &Server) {
        let owner = self.owner(slot_of(key));
        let other = self.primaries().into_iter().find(|node| node.port() != owner.port());
        (owner, other.expect("another primary"))
    }

    /// A replica of a primary.
    #[track_caller]
    pub fn replica_of(&self, primary: &Server) -> &Server {
        let port = primary.port().to_string();
        let replica = self.running().find(|node| {
            let mut client = node.client();
            client.server_info("replication", "role") == "slave"
                && client.server_info("replication", "master_port") == port
        });
        replica.expect("a replica")
    }

    /// A client that follows redirections.
    pub fn client(&self) -> ClusterClient {
        let seeds = self.nodes.iter().map(Server::port).collect();
        ClusterClient { seeds, connections: HashMap::new(), owners: HashMap::new() }
    }

    /// Moves a slot with all its keys to another primary, as operators' tools do.
    #[track_caller]
    pub fn move_slot(&self, slot: u16, to: &Server) {
        let moving = self.begin_to_move(slot, to);
        moving.carry_all();
        moving.end();
    }

    /// Makes a replica the primary by a planned failover, and waits until all nodes agree. The servers may give up an
    /// attempt that comes soon after an earlier attempt, so this function repeats the attempt.
    #[track_caller]
    pub fn hand_over_to(&self, replica: &Server) {
        // A replica that does not know yet of a slot that its primary has imported would not take over this slot.
        self.see_agreement();
        let mut client = replica.client();
        let mut asked: Option<Instant> = None;
        within(HAND_OVER, "the replica is the primary", || {
            if asked.is_none_or(|asked| asked.elapsed() > ATTEMPT) {
                asked = Some(Instant::now());
                let _ = client.call("CLUSTER FAILOVER");
            }
            (client.server_info("replication", "role") == "master").then_some(())
        });
        self.see_agreement();
    }

    /// Begins to move a slot. No key is moved yet.
    #[track_caller]
    pub fn begin_to_move<'c>(&'c self, slot: u16, to: &'c Server) -> SlotMove<'c> {
        let from = self.owner(slot);
        let (here, there) = (from.node_id(), to.node_id());
        let (mut source, mut target) = (from.client(), to.client());
        assert_eq!(target.call(format!("CLUSTER SETSLOT {slot} IMPORTING {here}")), Reply::ok());
        assert_eq!(source.call(format!("CLUSTER SETSLOT {slot} MIGRATING {there}")), Reply::ok());
        SlotMove { cluster: self, slot, from, to, replacing: false }
    }

    /// Lets the servers move a slot by atomic slot migration (Valkey from 9 on). Returns whether the migration
    /// succeeded.
    #[track_caller]
    pub fn migrate_slot(&self, slot: u16, to: &Server) -> bool {
        let mut source = self.owner(slot).client();
        let command = format!("CLUSTER MIGRATESLOTS SLOTSRANGE {slot} {slot} NODE {}", to.node_id());
        assert_eq!(source.call(command), Reply::ok());
        let succeeded = soon("the migration is over", || {
            let jobs = source.call("CLUSTER GETSLOTMIGRATIONS");
            match &*jobs.items()[0].field("state").text() {
                "success" => Some(true),
                "failed" | "cancelled" => Some(false),
                _ => None,
            }
        });
        if succeeded {
            self.see_agreement();
        }
        succeeded
    }

    /// Moves slots from one primary to another with `redis-cli --cluster reshard`.
    #[track_caller]
    pub fn reshard(&self, from: &Server, to: &Server, slots: u16) {
        let run = Command::new("redis-cli")
            .args(["--cluster", "reshard", &format!("127.0.0.1:{}", from.port()), "--cluster-yes"])
            .args(["--cluster-from", &from.node_id(), "--cluster-to", &to.node_id()])
            .args(["--cluster-slots", &slots.to_string()])
            .stdin(Stdio::null())
            .output()
            .expect("redis-cli runs");
        let output = String::from_utf8_lossy(&run.stdout);
        assert!(run.status.success() && !output.contains("[ERR]"), "redis-cli --cluster reshard:\n{output}");
    }

    fn running(&self) -> impl Iterator<Item = &Server> {
        self.nodes.iter().filter(|node| node.is_running())
    }
}

/// A slot that is being moved.
#[derive(Debug)]
pub struct SlotMove<'c> {
    cluster: &'c Cluster,
    slot: u16,
    /// The node that serves the slot before the move.
    pub from: &'c Server,
    /// The node that serves the slot after the move.
    pub to: &'c Server,
    replacing: bool,
}

impl SlotMove<'_> {
    /// Lets MIGRATE replace keys that the target has already. Use this only if a server fault may have left a key on
    /// both nodes.
    pub fn replacing(self) -> Self {
        Self { replacing: true, ..self }
    }

    /// Moves a batch of the slot's keys. Returns whether the slot had keys.
    #[track_caller]
    pub fn carry(&self) -> bool {
        let mut source = self.from.client();
        let keys = source.call(format!("CLUSTER GETKEYSINSLOT {} {BATCH}", self.slot));
        let keys = keys.items();
        if keys.is_empty() {
            return false;
        }
        let port = self.to.port().to_string();
        let mut command: Vec<&[u8]> = vec![b"MIGRATE", b"127.0.0.1", port.as_bytes(), b"", b"0", b"10000"];
        command.extend(self.replacing.then_some(&b"REPLACE"[..]));
        command.push(b"KEYS");
        command.extend(keys.iter().map(Reply::bytes));
        // The reply is NOKEY if other clients have removed all keys of the batch meanwhile.
        let answer = source.call(command);
        if matches!(answer.redirection(), Some(Redirection::Moved(_))) {
            // The source redirects MIGRATE, because the source already knows that the target serves the slot. The
            // source deletes the remaining keys itself.
            return false;
        }
        assert!(matches!(&answer, Reply::Simple(text) if text == "OK" || text == "NOKEY"), "{answer:?}");
        true
    }

    /// Moves all keys of the slot.
    #[track_caller]
    pub fn carry_all(&self) {
        while self.carry() {}
    }

    /// Assigns the slot to the target: on the target first, then on the former owner, then on the other nodes.
    #[track_caller]
    pub fn end(self) {
        let there = self.to.node_id();
        let command = format!("CLUSTER SETSLOT {} NODE {there}", self.slot);
        assert_eq!(self.to.client().call(&*command), Reply::ok());
        let mut source = self.from.client();
        // The former owner gives up the slot only when it has no key of the slot.
        eventually("the former owner lets the slot go", || {
            self.carry_all();
            source.call(&*command) == Reply::ok()
        });
        let informed = [self.from.port(), self.to.port()];
        for other in self.cluster.primaries().iter().filter(|node| !informed.contains(&node.port())) {
            assert_eq!(other.client().call(&*command), Reply::ok());
        }
    }
}

/// A client of the whole cluster. The client follows redirections, and repeats a command after TRYAGAIN,
/// CLUSTERDOWN and other temporary errors.
#[derive(Debug)]
pub struct ClusterClient {
    seeds: Vec<u16>,
    connections: HashMap<u16, Client>,
    owners: HashMap<u16, u16>,
}

impl ClusterClient {
    /// Sends a command about a key until the node that serves the key answers.
    ///
    /// # Panics
    /// When no node answers within [`DEADLINE`]. A failover takes less time.
    #[track_caller]
    pub fn call(&mut self, key: &str, command: &str) -> Reply {
        let slot = slot_of(key);
        let begun = Instant::now();
        let mut asking = None;
        for attempt in 0.. {
            assert!(begun.elapsed() < DEADLINE, "nobody answers {command:?}");
            let seed = self.seeds[attempt % self.seeds.len()];
            let port = asking.or_else(|| self.owners.get(&slot).copied()).unwrap_or(seed);
            let reply = self.try_call(port, asking.take().is_some(), command);
            match reply.as_ref().map(Reply::redirection) {
                Some(Some(Redirection::Moved(port))) => {
                    self.owners.insert(slot, port);
                }
                Some(Some(Redirection::Ask(port))) => asking = Some(port),
                Some(None) => match reply {
                    Some(Reply::Error(text)) if asks_to_come_again(&text) => {
                        std::thread::park_timeout(Duration::from_millis(2));
                    }
                    Some(reply) => return reply,
                    None => {}
                },
                None => {
                    self.connections.remove(&port);
                    self.owners.remove(&slot);
                }
            }
        }
        unreachable!("attempts do not end")
    }

    fn try_call(&mut self, port: u16, asking: bool, command: &str) -> Option<Reply> {
        let connection = match self.connections.entry(port) {
            Entry::Occupied(connection) => connection.into_mut(),
            Entry::Vacant(none) => none.insert(Client::connect(port).ok()?),
        };
        if asking && connection.try_call("ASKING").ok()? != Reply::ok() {
            return None;
        }
        connection.try_call(command).ok()
    }
}

/// Whether the error is temporary, so that the client should repeat the command.
fn asks_to_come_again(error: &str) -> bool {
    ["TRYAGAIN", "CLUSTERDOWN", "UNBLOCKED", "LOADING", "MASTERDOWN"]
        .iter()
        .any(|word| error.starts_with(word))
}

/// What a node reports about one node: the id, the flags, and the ranges of slots (first and last slot).
type Known = (String, String, Vec<(u16, u16)>);

/// What a node reports about all nodes, sorted.
fn view(nodes: &str) -> Vec<Known> {
    let mut view: Vec<Known> = nodes
        .lines()
        .map(|line| {
            let fields: Vec<&str> = line.split(' ').collect();
            let flags = fields[2].trim_start_matches("myself,").to_owned();
            (fields[0].to_owned(), flags, slots(line).collect())
        })
        .collect();
    view.sort();
    view
}

/// The slots in a line of CLUSTER NODES, without the slots that are being moved.
fn slots(line: &str) -> impl Iterator<Item = (u16, u16)> {
    line.split(' ').skip(8).filter(|part| !part.starts_with('[')).filter_map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some((first.parse().ok()?, last.parse().ok()?))
    })
}

impl Setup {
    /// Starts a cluster node that serves no slot and has not met another node.
    #[track_caller]
    pub fn start_node(self) -> Server {
        self.config_before("cluster-enabled yes")
            .config_before("cluster-node-timeout 2000")
            .config_before("cluster-require-full-coverage no")
            .config_before("cluster-allow-replica-migration no")
            .start()
    }
}

impl Server {
    /// The node id of the server.
    #[track_caller]
    pub fn node_id(&self) -> String {
        self.client().call("CLUSTER MYID").text()
    }

    /// Whether the server has a command, such as `"cluster|migrateslots"`.
    #[track_caller]
    pub fn has_command(&self, name: &str) -> bool {
        !self.client().call(["COMMAND", "INFO", name]).items()[0].is_null()
    }

    /// Introduces this node to the node to which `client` is connected.
    #[track_caller]
    fn meet(&self, client: &mut Client) {
        let bus = self.client().call("CONFIG GET cluster-port").field("cluster-port").text();
        assert_eq!(client.call(format!("CLUSTER MEET 127.0.0.1 {} {bus}", self.port())), Reply::ok());
    }
}
