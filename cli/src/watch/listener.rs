//! A connection to one primary that receives events and reads the locks that the events name.
//!
//! Events and replies arrive on one connection with RESP3, so they arrive in the order in which the server sent them.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use redis::{Cmd, Connection, FromRedisValue, PushKind, RedisError, Value};

use super::fact::{Fact, What};
use super::history::{History, Occasion, Reading};
use super::published::{self, Change, Published};
use crate::failure::Failure;
use crate::locks::{Lock, TYPE, info_command, is_about_a_key};
use crate::output;
use crate::server::Server;

/// How long the listener waits for events before it tests the connection.
const IDLE: Duration = Duration::from_secs(1);

/// After this time, the listener reads a lock without events again, because some changes have no event.
const MAX_AGE: Duration = Duration::from_secs(10);

/// How many locks one request reads.
const BATCH: usize = 100;

/// How many locks without events are read again in each second, at most.
const CHECKED: usize = 1_000;

/// How many locks with events may wait to be read, at most.
const MAX_PENDING: usize = 100_000;

/// How many keys the server scans before it serves other clients again.
const SCAN_COUNT: u64 = 1_000;

/// How many holders of a lock are read, at most.
const HOLDERS: u64 = 1_000;

/// The name of the setting for events.
const SETTING: &str = "notify-keyspace-events";

/// What all listeners share.
pub(super) struct Shared {
    pub(super) pattern: Vec<u8>,
    /// Whether to change the setting of a server that does not publish the needed events.
    pub(super) configures: bool,
    pub(super) history: Mutex<History>,
    /// A bounded channel. The channel blocks the listeners while the output is blocked, so memory does not grow.
    pub(super) facts: SyncSender<Fact>,
}

impl Shared {
    fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a fact to the output. This fails only when the output is closed, and then the process ends.
    pub(super) fn tell(&self, fact: Fact) {
        let _ = self.facts.send(fact);
    }
}

/// A subscribed connection.
pub(super) struct Listener {
    connection: Connection,
    server: Server,
    node: Arc<str>,
    /// The name of a channel of keyspace events, without the key at its end.
    prefix: Vec<u8>,
    shared: Arc<Shared>,
    /// The locks for which events have arrived since the last reading.
    pending: HashMap<Vec<u8>, Published>,
    /// Advice to the user. `None` while the server publishes the needed events.
    pub(super) lacking: Option<String>,
    since: SystemTime,
}

impl Listener {
    /// Connects to a primary and subscribes. Fails if the server does not have the module, or if the user lacks a right
    /// that the watcher needs.
    pub(super) fn connect(server: &Server, shared: Arc<Shared>) -> Result<Self, Failure> {
        let (connection, warning) = server.connect_with_module()?;
        warning.iter().for_each(|warning| output::complain(warning));
        let prefix = format!("__keyspace@{}__:", server.info().redis_settings().db()).into_bytes();
        let node = Arc::from(server.address());
        let mut listener = Self {
            connection,
            server: server.clone(),
            node,
            prefix,
            shared,
            pending: HashMap::new(),
            lacking: None,
            since: SystemTime::now(),
        };
        listener.start().map_err(|error| server.failure(&error))?;
        Ok(listener)
    }

    fn start(&mut self) -> Result<(), RedisError> {
        // This function checks the setting first. So after the subscription, the server publishes the events of all
        // changes.
        self.lacking = self.check_events()?;
        self.subscribe()?;
        self.check_rights()
    }

    /// Fails if the user lacks a right that the watcher needs.
    fn check_rights(&mut self) -> Result<(), RedisError> {
        self.call::<()>(&redis::cmd("PING"))?;
        self.call::<Value>(redis::cmd("SCAN").arg(0).arg("COUNT").arg(1))?;
        match self.call::<Value>(&info_command(&self.shared.pattern, 1, None)) {
            Err(error) if error.code() == Some("NOPERM") && !is_about_a_key(&error) => Err(error),
            _ => Ok(()),
        }
    }

    fn subscribe(&mut self) -> Result<(), RedisError> {
        let pattern = [self.prefix.as_slice(), &self.shared.pattern].concat();
        self.connection.send_packed_command(&redis::cmd("PSUBSCRIBE").arg(pattern).get_packed_command())?;
        // The reply to PSUBSCRIBE is a push message, or an error.
        self.connection.recv_response()?.extract_error()?;
        Ok(())
    }

    /// If the server does not publish the needed events, changes the setting with `--configure`. Without `--configure`,
    /// returns advice to the user.
    fn check_events(&mut self) -> Result<Option<String>, RedisError> {
        let get = redis::cmd("CONFIG").arg("GET").arg(SETTING).to_owned();
        let value = match self.call::<HashMap<String, String>>(&get) {
            // A user without the right to CONFIG GET may still receive events.
            Err(error) if error.code() == Some("NOPERM") => return Ok(None),
            found => found?.remove(SETTING).unwrap_or_default(),
        };
        let missing = published::missing(&value);
        if missing.is_empty() {
            return Ok(None);
        }
        let wanted = format!("{value}{missing}");
        if self.shared.configures {
            self.call::<Value>(redis::cmd("CONFIG").arg("SET").arg(SETTING).arg(&wanted))?;
            return Ok(None);
        }
        let address = self.server.address();
        Ok(Some(format!(
            "the server at {address} does not publish the events that watch needs. Run there: \
             CONFIG SET {SETTING} {wanted} (or use --configure)"
        )))
    }

    /// Watches for as long as the server is a primary. Fails if the connection breaks.
    pub(super) fn run(mut self, occasion: Occasion, is_primary: &AtomicBool) -> Result<(), Failure> {
        self.watch(occasion, is_primary).map_err(|error| self.server.failure(&error))
    }

    fn watch(&mut self, occasion: Occasion, is_primary: &AtomicBool) -> Result<(), RedisError> {
        self.read_all(occasion)?;
        let mut checked = Instant::now();
        let mut setting_checked = Instant::now();
        while is_primary.load(Ordering::Relaxed) {
            if self.pending.is_empty() {
                self.wait()?;
            }
            self.read_pending()?;
            if checked.elapsed() >= IDLE {
                checked = Instant::now();
                let keys = self.shared.history().unchecked(&self.node, MAX_AGE, CHECKED);
                self.read_keys(keys, Occasion::Watching)?;
            }
            if setting_checked.elapsed() >= MAX_AGE {
                setting_checked = Instant::now();
                self.check_setting()?;
            }
        }
        Ok(())
    }

    /// Waits for an event. If no event arrives within [`IDLE`], tests the connection.
    fn wait(&mut self) -> Result<(), RedisError> {
        self.connection.set_read_timeout(Some(IDLE))?;
        let received = self.connection.recv_response();
        self.connection.set_read_timeout(Some(self.server.patience()))?;
        match received {
            Ok(Value::Push { kind, data }) => self.note(&kind, &data),
            // After a timeout, the redis crate takes the next reply for a late reply and drops it. So the listener
            // sends PING twice.
            Err(error) if error.is_timeout() => {
                self.connection.send_packed_command(&redis::cmd("PING").get_packed_command())?;
                self.call::<()>(&redis::cmd("PING"))
            }
            Ok(other) => Err(io::Error::other(format!("unexpected reply {other:?}")).into()),
            Err(error) => Err(error),
        }
    }

    /// Prints a message when the server stops publishing the needed events.
    fn check_setting(&mut self) -> Result<(), RedisError> {
        let lacking = self.check_events()?;
        if self.lacking.is_none()
            && let Some(command) = &lacking
        {
            self.shared.tell(Fact::of_server(What::EventsOff, command.clone()));
        }
        self.lacking = lacking;
        Ok(())
    }

    /// Reads all locks of the server. Except at the start, this function then also reads the known locks that SCAN did
    /// not return.
    fn read_all(&mut self, occasion: Occasion) -> Result<(), RedisError> {
        let mut read = HashSet::new();
        let mut cursor = 0_u64;
        loop {
            let mut scan = redis::cmd("SCAN");
            scan.arg(cursor).arg("MATCH").arg(self.shared.pattern.as_slice());
            scan.arg("COUNT").arg(SCAN_COUNT).arg("TYPE").arg(TYPE);
            let (next, mut keys): (u64, Vec<Vec<u8>>) = self.call(&scan)?;
            // SCAN may return a key twice.
            keys.retain(|key| read.insert(key.clone()));
            self.read_keys(keys, occasion)?;
            if next == 0 {
                break;
            }
            cursor = next;
        }
        if occasion == Occasion::Start {
            return Ok(());
        }
        let mut known = self.shared.history().keys();
        known.retain(|key| !read.contains(key));
        self.read_keys(known, occasion)
    }

    fn read_pending(&mut self) -> Result<(), RedisError> {
        let keys = self.pending.keys().take(BATCH).cloned().collect();
        self.read_keys(keys, Occasion::Watching)
    }

    fn read_keys(&mut self, keys: Vec<Vec<u8>>, occasion: Occasion) -> Result<(), RedisError> {
        for batch in keys.chunks(BATCH) {
            let mut request = Vec::new();
            for key in batch {
                info_command(key, HOLDERS, None).write_packed_command(&mut request);
            }
            self.connection.send_packed_command(&request)?;
            for key in batch {
                let reply = self
                    .reply()?
                    .extract_error()
                    .and_then(|reply| Ok(Option::<Lock>::from_redis_value(reply)?));
                self.take_reading(key, reply, occasion)?;
            }
        }
        Ok(())
    }

    /// Adds a reading to the history, and reports what has happened to the lock.
    fn take_reading(
        &mut self,
        key: &[u8],
        reply: Result<Option<Lock>, RedisError>,
        occasion: Occasion,
    ) -> Result<(), RedisError> {
        let published = self.pending.remove(key).unwrap_or_default();
        let (lock, is_other_type) = match reply {
            Ok(lock) => (lock, false),
            Err(error) => match error.code() {
                Some("WRONGTYPE") => (None, true),
                // The periodic check reads the lock again later, here or at the server to which its slot has moved.
                Some("CLUSTERDOWN") => return Ok(()),
                _ if is_about_a_key(&error) => return Ok(()),
                _ => return Err(error),
            },
        };
        let reading = Reading {
            key: key.to_vec(),
            lock,
            is_other_type,
            published,
            node: Arc::clone(&self.node),
            occasion,
            since: self.since,
            time: SystemTime::now(),
            instant: Instant::now(),
        };
        let facts = self.shared.history().read(reading);
        facts.into_iter().for_each(|fact| self.shared.tell(fact));
        Ok(())
    }

    fn call<T: FromRedisValue>(&mut self, cmd: &Cmd) -> Result<T, RedisError> {
        self.connection.send_packed_command(&cmd.get_packed_command())?;
        Ok(T::from_redis_value(self.reply()?.extract_error()?)?)
    }

    /// Returns the next reply. Records the events that arrive before this reply.
    fn reply(&mut self) -> Result<Value, RedisError> {
        loop {
            let received = self.connection.recv_response()?;
            let Value::Push { kind, data } = received else { return Ok(received) };
            self.note(&kind, &data)?;
        }
    }

    /// Records an event, if this message is one.
    fn note(&mut self, kind: &PushKind, data: &[Value]) -> Result<(), RedisError> {
        let [_, Value::BulkString(channel), Value::BulkString(event)] = data else { return Ok(()) };
        let Some(key) = channel.strip_prefix(self.prefix.as_slice()) else { return Ok(()) };
        let change = Change::of(event);
        let is_pending = self.pending.contains_key(key);
        let is_known = is_pending || change.may_create() || self.shared.history().knows(key);
        if *kind != PushKind::PMessage || !is_known {
            return Ok(());
        }
        if !is_pending && self.pending.len() >= MAX_PENDING {
            return Err(io::Error::other("the events come faster than the locks can be read").into());
        }
        let published = self.pending.entry(key.to_vec()).or_default();
        if !matches!(change, Change::Renewed | Change::Other) {
            published.push((change, SystemTime::now()));
        }
        Ok(())
    }
}
