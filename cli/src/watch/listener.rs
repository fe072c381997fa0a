//! A connection to one primary that receives events and reads the locks that the events name.
//!
//! Events and replies arrive on one connection with RESP3, so they arrive in the order in which the server sent them.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use redis::{Cmd, Connection, FromRedisValue, PushKind, RedisError, Value};

use super::history::{Reading, facts};
use super::options::Options;
use super::published::{self, Change};
use crate::failure::Failure;
use crate::locks::{Lock, info_command, is_about_a_key, scan_command};
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

/// How many holders of a lock are read, at most.
const HOLDERS: u64 = 1_000;

/// The name of the setting for events.
const SETTING: &str = "notify-keyspace-events";

/// A subscribed connection.
pub(super) struct Listener {
    connection: Connection,
    server: Server,
    options: Arc<Options>,
    /// The name of a channel of keyspace events, without the key at its end.
    prefix: Vec<u8>,
    /// The held locks, as last read.
    locks: HashMap<Vec<u8>, Reading>,
    /// The events since the last reading of each lock.
    pending: HashMap<Vec<u8>, Vec<Change>>,
}

impl Listener {
    /// Connects to a primary and subscribes. Fails if the server does not have the module, if it does not publish the
    /// needed events, or if the user lacks a right that the watcher needs.
    pub(super) fn connect(server: &Server, options: Arc<Options>) -> Result<Self, Failure> {
        let (connection, warning) = server.connect_with_module()?;
        warning.iter().for_each(|warning| output::complain(warning));
        let prefix = format!("__keyspace@{}__:", server.info().redis_settings().db()).into_bytes();
        let (locks, pending) = Default::default();
        let server = server.clone();
        let mut listener = Self { connection, server, options, prefix, locks, pending };
        listener.require_events()?;
        listener.subscribe().map_err(|error| listener.server.failure(&error))?;
        Ok(listener)
    }

    /// Fails if the server does not publish the needed events. With `--configure`, changes the setting of the server.
    fn require_events(&mut self) -> Result<(), Failure> {
        let get = redis::cmd("CONFIG").arg("GET").arg(SETTING).to_owned();
        let value = match self.call::<HashMap<String, String>>(&get) {
            // A user without the right to CONFIG GET may still receive events.
            Err(error) if error.code() == Some("NOPERM") => return Ok(()),
            found => found.map_err(|error| self.server.failure(&error))?.remove(SETTING).unwrap_or_default(),
        };
        let missing = published::missing(&value);
        let wanted = format!("{value}{missing}");
        if missing.is_empty() {
            Ok(())
        } else if self.options.configure {
            let set = redis::cmd("CONFIG").arg("SET").arg(SETTING).arg(&wanted).to_owned();
            self.call(&set).map_err(|error| self.server.failure(&error))
        } else {
            Err(Failure::new(format!(
                "the server at {} does not publish the events that watch needs. Run there: \
                 CONFIG SET {SETTING} {wanted} (or use --configure)",
                self.server.address()
            )))
        }
    }

    fn subscribe(&mut self) -> Result<(), RedisError> {
        // The user learns now that a right is missing, and not when the first event arrives.
        self.call::<Value>(&scan_command(0, self.options.pattern.as_bytes()))?;
        self.send_test()?;
        self.finish_test()?;
        let pattern = [self.prefix.as_slice(), self.options.pattern.as_bytes()].concat();
        self.connection.send_packed_command(&redis::cmd("PSUBSCRIBE").arg(pattern).get_packed_command())?;
        // The reply to PSUBSCRIBE is a push message, or an error.
        self.connection.recv_response()?.extract_error()?;
        Ok(())
    }

    /// Watches for as long as the server is a primary. Fails if the connection breaks.
    pub(super) fn run(mut self, is_primary: &AtomicBool) -> Result<(), Failure> {
        self.watch(is_primary).map_err(|error| self.server.failure(&error))
    }

    fn watch(&mut self, is_primary: &AtomicBool) -> Result<(), RedisError> {
        self.read_all()?;
        let mut checked = Instant::now();
        while is_primary.load(Ordering::Relaxed) {
            if self.pending.is_empty() {
                self.wait()?;
            }
            self.read(self.pending.keys().cloned().collect())?;
            if checked.elapsed() >= IDLE {
                checked = Instant::now();
                let old = self.locks.iter().filter(|(_, reading)| reading.at.elapsed() >= MAX_AGE);
                self.read(old.take(CHECKED).map(|(key, _)| key.clone()).collect())?;
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
            Ok(Value::Push { kind, data }) => {
                self.note(&kind, &data);
                Ok(())
            }
            // After a timeout, the redis crate takes the next reply for a late reply and drops it. So the listener
            // sends the test twice.
            Err(error) if error.is_timeout() => {
                self.send_test()?;
                self.send_test()?;
                self.finish_test()
            }
            Ok(other) => Err(io::Error::other(format!("unexpected reply {other:?}")).into()),
            Err(error) => Err(error),
        }
    }

    /// Sends a request that tests the connection, and the right to LOCK.INFO.
    fn send_test(&mut self) -> Result<(), RedisError> {
        let test = info_command(self.options.pattern.as_bytes(), 0, None);
        self.connection.send_packed_command(&test.get_packed_command())
    }

    fn finish_test(&mut self) -> Result<(), RedisError> {
        match self.reply()?.extract_error() {
            Err(error) if error.code() == Some("NOPERM") && !is_about_a_key(&error) => Err(error),
            _ => Ok(()),
        }
    }

    /// Reads all locks of the server.
    fn read_all(&mut self) -> Result<(), RedisError> {
        let mut read = HashSet::new();
        let mut cursor = 0;
        loop {
            let scan = scan_command(cursor, self.options.pattern.as_bytes());
            let (next, mut keys): (u64, Vec<Vec<u8>>) = self.call(&scan)?;
            // SCAN may return a key twice.
            keys.retain(|key| read.insert(key.clone()));
            self.read(keys)?;
            if next == 0 {
                return Ok(());
            }
            cursor = next;
        }
    }

    fn read(&mut self, keys: Vec<Vec<u8>>) -> Result<(), RedisError> {
        for batch in keys.chunks(BATCH) {
            let mut request = Vec::new();
            for key in batch {
                info_command(key, HOLDERS, None).write_packed_command(&mut request);
            }
            self.connection.send_packed_command(&request)?;
            for key in batch {
                let reply = self.reply()?.extract_error();
                self.take_reading(key, reply.and_then(|reply| Ok(redis::from_redis_value(reply)?)))?;
            }
        }
        Ok(())
    }

    /// Reports what has happened to the lock since its last reading.
    fn take_reading(
        &mut self,
        key: &[u8],
        reply: Result<Option<Lock>, RedisError>,
    ) -> Result<(), RedisError> {
        let mut changes = self.pending.remove(key).unwrap_or_default();
        let before = self.locks.remove(key).unwrap_or_else(|| Reading::of(None));
        let now = match reply {
            Ok(lock) => Reading::of(lock),
            Err(error) if error.code() == Some("WRONGTYPE") => {
                changes.push(Change::OVERWRITTEN);
                Reading::of(None)
            }
            // The listener forgets a lock that has moved to another server, or that the user may not read any more.
            Err(error) if is_about_a_key(&error) => return Ok(()),
            Err(error) => return Err(error),
        };
        facts(key, &before, &now, &changes).iter().for_each(|fact| self.options.tell(fact));
        if !now.holders.is_empty() {
            self.locks.insert(key.to_vec(), now);
        }
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
            self.note(&kind, &data);
        }
    }

    /// Records an event, if this message is one.
    fn note(&mut self, kind: &PushKind, data: &[Value]) {
        let [_, Value::BulkString(channel), Value::BulkString(event)] = data else { return };
        let Some(key) = channel.strip_prefix(self.prefix.as_slice()) else { return };
        let change = Change::of(event);
        let may_create = matches!(change, Change::Acquired | Change::Arrived);
        // Other keys than locks have events too.
        let is_lock = may_create || self.pending.contains_key(key) || self.locks.contains_key(key);
        if *kind == PushKind::PMessage && is_lock {
            self.pending.entry(key.to_vec()).or_default().push(change);
        }
    }
}
