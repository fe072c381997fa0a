//! Every write command of the server, used on a lock that has a holder and a waiter.

use lockward_tests::{Client, Random, Reply, Server, Silence, eventually, rounds};
use std::time::Duration;

/// Commands that are not tested, because they connect to other servers.
const LEFT_OUT: [&str; 1] = ["migrate"];

/// The values from which random arguments are chosen.
const WORDS: [&str; 44] = [
    "lock", "lock", "lock", "lock", "lock", "lock", "free", "string", "list", "hash", "set", "zset",
    "stream", "0", "1", "2", "-1", "10", "1.5", "*", "$", "+", "-", "(1", "a", "b", "m", "BEFORE", "LEFT",
    "RIGHT", "STORE", "REPLACE", "COUNT", "BYLEX", "FIELDS", "PX", "EX", "NX", "XX", "GET", "PERSIST", "ALL",
    "HOLDS", "ASYNC",
];

/// Complete requests. Random arguments are often wrong, but these requests certainly have an effect.
const WHOLE: [&str; 54] = [
    "SET lock value",
    "SET lock value KEEPTTL",
    "SET lock value XX PX 100000",
    "SETEX lock 100 value",
    "SETNX lock value",
    "MSET a 1 lock value",
    "MSETNX lock value",
    "GETSET lock value",
    "GETDEL lock",
    "GETEX lock PERSIST",
    "DEL lock",
    "UNLINK a lock",
    "RENAME lock other",
    "RENAME string lock",
    "RENAMENX lock other",
    "MOVE lock 1",
    "COPY string lock REPLACE",
    "COPY lock other",
    "EXPIRE lock 1000",
    "EXPIRE lock -1",
    "PEXPIRE lock 1",
    "EXPIREAT lock 1",
    "PEXPIREAT lock 99999999999999",
    "PERSIST lock",
    "APPEND lock x",
    "INCR lock",
    "SETRANGE lock 5 x",
    "SETBIT lock 7 1",
    "BITOP AND lock string string",
    "BITFIELD lock SET u8 0 1",
    "LPUSH lock x",
    "RPUSHX lock x",
    "LMOVE list lock LEFT RIGHT",
    "RPOPLPUSH list lock",
    "BLMOVE list lock LEFT RIGHT 1",
    "BLPOP lock list 1",
    "SADD lock x",
    "SMOVE set lock a",
    "SUNIONSTORE lock set",
    "SINTERSTORE lock set free",
    "SDIFFSTORE lock set",
    "HSET lock f v",
    "ZADD lock 1 a",
    "ZUNIONSTORE lock 1 zset",
    "ZRANGESTORE lock zset 0 -1",
    "GEOADD lock 1 1 a",
    "GEOSEARCHSTORE lock zset FROMLONLAT 0 0 BYRADIUS 9999 km",
    "SORT list ALPHA STORE lock",
    "PFADD lock x",
    "PFMERGE lock free",
    "XADD lock * f v",
    "SWAPDB 0 1",
    "FLUSHDB",
    "FLUSHALL ASYNC",
];

/// The context in which a command runs.
#[derive(Clone, Copy, Debug)]
enum Way {
    Alone,
    Transaction,
    Script,
}

/// A primary and its replica. On the primary, A holds `lock` and B waits for `lock`.
struct Stage {
    primary: Server,
    replica: Server,
    a: Client,
    b: Client,
}

impl Stage {
    #[track_caller]
    fn set() -> Self {
        let primary = Server::start();
        let replica = Server::start_replica_of(&primary);
        let (a, b) = (primary.client(), primary.client());
        let mut stage = Self { primary, replica, a, b };
        stage.set_anew();
        stage
    }

    #[track_caller]
    fn set_anew(&mut self) {
        self.a.call("FLUSHALL");
        self.a.acquire("lock A PX 600000");
        self.b.ask("lock B PX 600000 BLOCK 0");
        self.a.see_waiters("lock", 1);
    }

    #[track_caller]
    fn give(&mut self, command: &[String], way: Way) {
        // A key of each type, for commands that read one key and write another.
        self.a.call_all([
            "SET string value",
            "RPUSH list a b",
            "HSET hash a 1",
            "SADD set a b",
            "ZADD zset 1 a 2 b",
            "XADD stream * a 1",
        ]);
        match way {
            Way::Alone => drop(self.a.call(command)),
            Way::Transaction => {
                self.a.call("MULTI");
                self.a.call(command);
                self.a.call("EXEC");
            }
            Way::Script => {
                let script = ["EVAL", "return redis.pcall(unpack(ARGV))", "0"].map(String::from);
                self.a.call([&script[..], command].concat());
            }
        }
    }

    /// Waits until B has a reply, or waits for a lock that another owner holds. Returns whether B waits.
    #[track_caller]
    fn see_sound(&mut self, what: &str) -> bool {
        let mut reply = None;
        eventually(&format!("{what}: B waits or has a reply"), || {
            match self.b.reply_within(Duration::from_millis(1)) {
                Ok(one) => reply = Some(one),
                Err(Silence::Closed) => panic!("{what}: B's connection is closed"),
                Err(Silence::StillOpen) => {}
            }
            // If the key is not a lock any more, B does not count as waiting, because B will soon get the error
            // WRONGTYPE.
            let is_lock = !matches!(self.a.call("LOCK.INFO lock"), Reply::Error(_));
            let waits =
                is_lock && self.a.queue("lock") == ["B"] && self.a.owner("lock").as_deref() != Some("B");
            reply.is_some() || waits
        });
        match &reply {
            None => return true,
            Some(Reply::Array(_)) => {
                // B was granted the lock. But the command may have broken or moved the lock after the grant,
                // so B may no longer hold it.
                let holder = self.a.call("LOCK.INFO lock");
                assert!(matches!(holder, Reply::Array(_) | Reply::NullArray | Reply::Error(_)), "{what}");
            }
            Some(Reply::Error(text)) => {
                assert!(text.starts_with("WRONGTYPE"), "{what}: {text}");
            }
            other => panic!("{what}: the reply to B is {other:?}"),
        }
        false
    }

    #[track_caller]
    fn see_same(&mut self, what: &str) {
        self.replica.see_in_sync_with(&self.primary);
        let mut there = self.replica.client();
        eventually(&format!("{what}: the replica has the same data"), || {
            there.call("DEBUG DIGEST") == self.a.call("DEBUG DIGEST")
        });
    }
}

#[test]
fn no_write_command_leaves_a_lock_or_its_waiters_inconsistent() {
    let mut random = Random::new();
    let mut stage = Stage::set();
    let listed = stage.a.call("COMMAND LIST FILTERBY ACLCAT write");
    let names: Vec<String> = listed.items().iter().map(Reply::text).collect();
    let names: Vec<String> = names.into_iter().filter(|name| !LEFT_OUT.contains(&name.as_str())).collect();
    let infos = stage.a.call([vec!["COMMAND".to_owned(), "INFO".to_owned()], names.clone()].concat());
    let mut commands: Vec<(Vec<String>, bool)> = Vec::new();
    for whole in WHOLE {
        commands.push((whole.split(' ').map(String::from).collect(), false));
    }
    for (name, info) in names.iter().zip(infos.items()) {
        let info = info.items();
        let (arity, first_key) = (info[1].int().unsigned_abs(), info[3].int());
        let blocks = info[2].items().iter().any(|flag| flag.text() == "blocking");
        for _ in 0..rounds(2, 20) {
            let count = arity - 1 + if info[1].int() < 0 { random.number() % 4 } else { 0 };
            let mut command = vec![name.clone()];
            command.extend((0..count).map(|_| random.one_of(&WORDS).to_owned()));
            if let Some(key) = usize::try_from(first_key).ok().and_then(|at| command.get_mut(at))
                && first_key > 0
                && !random.once_in(4)
            {
                "lock".clone_into(key);
            }
            commands.push((command, blocks));
        }
    }
    let (mut waits, mut ends) = (0, 0);
    for (number, (command, blocks)) in commands.iter().enumerate() {
        for way in [Way::Alone, Way::Transaction, Way::Script] {
            if *blocks && matches!(way, Way::Alone) {
                continue;
            }
            let what = format!("{way:?} {command:?}");
            stage.give(command, way);
            if stage.see_sound(&what) {
                waits += 1;
            } else {
                ends += 1;
                stage.set_anew();
            }
            if number % 20 == 0 {
                stage.see_same(&what);
            }
        }
    }
    stage.see_same("the end");
    println!("{} commands: B waited on {waits} times, and had a reply {ends} times", names.len());
    assert!(names.len() > 100 && waits > 0 && ends > 0);
}
