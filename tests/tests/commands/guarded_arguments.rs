//! LOCK.GUARD with random commands and arguments: the server does not crash, replies to each call, and knows the keys
//! of each call.

use lockward_tests::{Client, Cluster, Random, Reply, Setup, rounds};

/// The number of calls that are sent together. The data and the lock are prepared again only before the next batch.
const BATCH: usize = 50;

/// A server that refuses strings above 2 MB. Without this limit, random offsets would create very large strings.
fn setup() -> Setup {
    Setup::new().config("proto-max-bulk-len 2mb")
}

/// A command of the server.
#[derive(Clone, Debug)]
struct Known {
    /// The name of the command, and the name of its subcommand if it has one.
    name: Vec<String>,
    /// The number of words, as COMMAND reports it. A negative number -n means n words or more.
    arity: i64,
}

/// All commands and subcommands of a server.
fn known_commands(client: &mut Client) -> Vec<Known> {
    let reply = client.call("COMMAND");
    reply.items().iter().flat_map(known).collect()
}

fn known(command: &Reply) -> Vec<Known> {
    let [name, arity, .., subcommands] = command.items() else { panic!("{command:?}") };
    let name = name.text().split('|').map(str::to_owned).collect();
    let own = Known { name, arity: arity.int() };
    [own].into_iter().chain(subcommands.items().iter().flat_map(known)).collect()
}

/// Creates random commands.
struct Generator {
    random: Random,
    known: Vec<Known>,
    /// The beginning of each key: a hash tag in a cluster, otherwise empty.
    tag: &'static str,
}

impl Generator {
    const KEYS: [&str; 9] = ["lock", "string", "list", "hash", "set", "zset", "stream", "missing", "secret"];
    const WORDS: [&str; 55] = [
        "-1",
        "0",
        "1",
        "2",
        "3",
        "10",
        "1000",
        "9223372036854775807",
        "-9223372036854775808",
        "4294967296",
        "1.5",
        "inf",
        "nan",
        "*",
        "-",
        "+",
        "$",
        ">",
        "0-1",
        "(1",
        "[a",
        "a",
        "STREAMS",
        "KEYS",
        "STORE",
        "STOREDIST",
        "BY",
        "GET",
        "WEIGHTS",
        "AGGREGATE",
        "COUNT",
        "LIMIT",
        "WITHSCORES",
        "NX",
        "XX",
        "EX",
        "PX",
        "BLOCK",
        "GROUP",
        "MKSTREAM",
        "LEFT",
        "RIGHT",
        "MIN",
        "MAX",
        "MATCH",
        "REPLACE",
        "DB",
        "ABSTTL",
        "CREATE",
        "HELP",
        "return 1",
        "return redis.call('GET', KEYS[1])",
        "return redis.call('SET', KEYS[1], 1)",
        "=",
        "~",
    ];
    const BYTES: [&[u8]; 6] = [b"", b"\0", b"string\0", b"\xff\xfe", b"\r\n", b"|"];
    /// Commands that are not run, because they take long or connect to other machines.
    const NOT_RUN: [&str; 3] = ["migrate", "pfselftest", "cluster"];

    fn new(client: &mut Client, tag: &'static str) -> Self {
        Self { random: Random::new(), known: known_commands(client), tag }
    }

    fn key(&mut self) -> Vec<u8> {
        format!("{}{}", self.tag, self.random.one_of(&Self::KEYS)).into_bytes()
    }

    fn word(&mut self) -> Vec<u8> {
        match self.random.within(0..100) {
            0..45 => self.key(),
            45..90 => self.random.one_of(&Self::WORDS).as_bytes().to_vec(),
            90..99 => self.random.one_of(&Self::BYTES).to_vec(),
            _ => vec![b'x'; usize::try_from(self.random.within(0..100_000)).expect("a length")],
        }
    }

    /// The words of a random command. Usually there are about as many words as the command takes, but sometimes
    /// thousands.
    fn command(&mut self) -> Vec<Vec<u8>> {
        let Known { name, arity } = self.random.one_of(&self.known);
        let mut words: Vec<Vec<u8>> = name.iter().map(|word| word.as_bytes().to_vec()).collect();
        match self.random.within(0..40) {
            0 => words = vec![self.word()],
            1 => words[0].push(0),
            2 => words.truncate(1),
            3..6 => {
                let inner = self.command();
                let token = self.word();
                return [b"LOCK.GUARD".to_vec(), self.key(), token].into_iter().chain(inner).collect();
            }
            6..13 => words[0].make_ascii_uppercase(),
            _ => {}
        }
        let more = match self.random.within(0..200) {
            0 => self.random.within(0..2_000),
            _ => self.random.one_of(&[-1, 0, 0, 0, 1, 1, 2, 3, 4, 6]),
        };
        let count = (arity.abs() + more).try_into().unwrap_or(0_usize);
        while words.len() < count {
            words.push(self.word());
        }
        words
    }

    /// A command that is safe to run.
    fn harmless_command(&mut self) -> Vec<Vec<u8>> {
        loop {
            let command = self.command();
            let names =
                |word: &Vec<u8>| Self::NOT_RUN.iter().any(|name| word.eq_ignore_ascii_case(name.as_bytes()));
            if !command.iter().any(names) {
                return command;
            }
        }
    }

    /// Sets a key of each type, and acquires the lock. Returns the token.
    fn prepare(&self, client: &mut Client) -> i64 {
        let tag = self.tag;
        client.call("FLUSHALL");
        client.call_all([
            format!("SET {tag}string 1"),
            format!("RPUSH {tag}list a b c"),
            format!("HSET {tag}hash a 1"),
            format!("SADD {tag}set a b c"),
            format!("ZADD {tag}zset 1 a 2 b"),
            format!("XADD {tag}stream 1-1 a 1"),
            format!("SET {tag}secret hunter2"),
        ]);
        client.acquire(&format!("{tag}lock A PX 600000")).token
    }
}

#[test]
fn the_server_survives_any_guarded_command() {
    let server = setup().start();
    let (mut admin, mut client) = (server.client(), server.client());
    let mut generator = Generator::new(&mut admin, "");
    let mut ran = 0;
    for _ in 0..rounds(80, 2_000) {
        let token = generator.prepare(&mut admin);
        let calls: Vec<_> = (0..BATCH)
            .map(|_| {
                let command = generator.harmless_command();
                let call = guarded(generator.tag, token, command);
                if generator.random.once_in(8) { in_script(call) } else { call }
            })
            .collect();
        let replies = client.call_all(calls);
        ran += replies.iter().filter(|reply| !matches!(reply, Reply::Error(_))).count();
        assert_eq!(admin.call("PING"), Reply::Simple("PONG".into()));
    }
    assert!(ran > 200, "only {ran} commands were run");
}

fn guarded(tag: &str, token: i64, command: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    let guard = [b"LOCK.GUARD".to_vec(), format!("{tag}lock").into(), token.to_string().into()];
    guard.into_iter().chain(command).collect()
}

fn in_script(call: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    let script = [&b"EVAL"[..], b"return redis.pcall(unpack(ARGV))", b"0"].map(<[u8]>::to_vec);
    script.into_iter().chain(call).collect()
}

#[test]
fn a_fenced_guard_runs_no_command() {
    let server = setup().start();
    let mut client = server.client();
    let mut generator = Generator::new(&mut client, "");
    let token = generator.prepare(&mut client);
    let digest = client.call("DEBUG DIGEST");
    for _ in 0..rounds(80, 2_000) {
        let calls: Vec<_> = (0..BATCH)
            .map(|_| {
                let command = generator.command();
                guarded(generator.tag, token + 1, command)
            })
            .collect();
        for (reply, call) in client.call_all(calls.iter().map(Vec::as_slice)).into_iter().zip(&calls) {
            let text = String::from_utf8_lossy(&call.join(&b' ')).into_owned();
            assert!(["FENCED", "ERR"].contains(&reply.error_word()), "{text}: {reply:?}");
        }
    }
    assert_eq!(client.call("DEBUG DIGEST"), digest);
}

#[test]
fn no_guarded_command_exceeds_the_rights_of_its_client() {
    let server = setup().start();
    let (mut admin, mut client) = (server.client(), server.client());
    let mut generator = Generator::new(&mut admin, "");
    let keys = Generator::KEYS.iter().filter(|key| **key != "secret").map(|key| format!("~{key}"));
    let keys = keys.collect::<Vec<_>>().join(" ");
    let rules = format!("ACL SETUSER worker on >pass resetkeys {keys} +@all -@dangerous -@admin");
    assert_eq!(admin.call(rules), Reply::ok());
    assert_eq!(client.call("AUTH worker pass"), Reply::ok());
    let mut refused = 0;
    for _ in 0..rounds(80, 2_000) {
        let token = generator.prepare(&mut admin);
        let before = admin.call("DUMP secret");
        let calls: Vec<_> = (0..BATCH)
            .map(|_| {
                let command = generator.harmless_command();
                let call = guarded(generator.tag, token, command);
                if generator.random.once_in(8) { in_script(call) } else { call }
            })
            .collect();
        for (reply, call) in client.call_all(calls.iter().map(Vec::as_slice)).into_iter().zip(&calls) {
            let shown = format!("{reply:?}");
            refused += usize::from(shown.contains("NOPERM"));
            assert!(!shown.contains("hunter2"), "{}: {shown}", String::from_utf8_lossy(&call.join(&b' ')));
        }
        assert_eq!(admin.call("DUMP secret"), before);
    }
    assert!(refused > 200, "only {refused} commands were refused");
}

#[test]
fn the_keys_of_any_guarded_command_are_the_lock_and_the_keys_of_the_command() {
    let server = setup().start();
    let mut client = server.client();
    let mut generator = Generator::new(&mut client, "");
    see_same_keys(&mut client, &mut generator, rounds(4_000, 100_000));
}

#[test]
fn the_keys_of_a_guarded_command_are_known_wherever_they_stand() {
    let server = setup().start();
    let mut client = server.client();
    for (command, count) in [
        ("ZUNIONSTORE to 2 a b WEIGHTS 1 2", 3),
        ("ZINTER 2 a b WITHSCORES", 2),
        ("SINTERCARD 3 a b c LIMIT 1", 3),
        ("LMPOP 2 a b LEFT COUNT 2", 2),
        ("BLMPOP 0 2 a b LEFT", 2),
        ("BLPOP a b 0", 2),
        ("XREAD COUNT 1 BLOCK 0 STREAMS a b 0 $", 2),
        ("XREADGROUP GROUP g c STREAMS a b > >", 2),
        ("XGROUP CREATE a g $ MKSTREAM", 1),
        ("OBJECT ENCODING a", 1),
        ("MEMORY USAGE a SAMPLES 0", 1),
        ("SORT a BY w_* STORE to", 2),
        ("GEORADIUS a 1 1 1 km STORE to", 2),
        ("GEOSEARCHSTORE to a FROMLONLAT 1 1 BYRADIUS 1 km", 2),
        ("BITOP AND to a b", 3),
        ("EVAL script 2 a b c", 2),
        ("FCALL_RO function 1 a b", 1),
        ("SET a 1 GET", 1),
        ("BITFIELD a GET u8 0", 1),
        ("MIGRATE host 1 a 0 1", 1),
        ("PFMERGE to a b", 3),
        ("CONFIG GET maxmemory", 0),
        ("CLIENT ID", 0),
        ("XGROUP", 0),
        ("ACL CAT", 0),
        ("COPY a", 0),
        ("GET a b", 0),
        ("ZINCRBY a 1 b c", 0),
    ] {
        let command: Vec<_> = command.split(' ').map(|word| word.as_bytes().to_vec()).collect();
        let own = keys_of(&mut client, &command);
        assert_eq!(own.len(), count, "{command:?}");
        assert_eq!(keys_beside_lock(&mut client, "", &command, &own), own, "{command:?}");
    }
}

#[test]
fn keys_that_the_server_does_not_report_to_modules_are_known() {
    let server = setup().start();
    let mut client = server.client();
    // Only Redis from 8.4 on and Valkey from 9.1 on have MSETEX. Other servers report no keys for MSETEX, with or
    // without the guard.
    for command in ["MSETEX 2 a 1 b 2 EX 10", "MSETEX 1 a 1", "MSETEX 3 a 1", "MSETEX 0 a 1", "MSETEX x a 1"]
    {
        let command: Vec<_> = command.split(' ').map(|word| word.as_bytes().to_vec()).collect();
        let own = keys_of(&mut client, &command);
        assert_eq!(keys_beside_lock(&mut client, "", &command, &own), own, "{command:?}");
    }
}

/// Checks that the server reports the same keys and flags for a command alone and in a guard. The key of the lock,
/// which only the guard has, is left out.
fn see_same_keys(client: &mut Client, generator: &mut Generator, count: usize) {
    let mut with_keys = 0;
    for _ in 0..count {
        let command = generator.command();
        // LOCK.GUARD refuses commands that begin with `lock.`. If the name of a command contains a NUL, the server
        // sometimes reads only the part before the NUL, so no keys are expected for this command either.
        let is_refused = command[0].to_ascii_lowercase().starts_with(b"lock.") || command[0].contains(&0);
        let own = if is_refused { Vec::new() } else { keys_of(client, &command) };
        with_keys += usize::from(!own.is_empty());
        let both = keys_beside_lock(client, generator.tag, &command, &own);
        if both != own && !has_wrong_syntax(client, &command) {
            assert_eq!(both, own, "{}", String::from_utf8_lossy(&command.join(&b' ')));
        }
    }
    assert!(with_keys * 5 > count, "only {with_keys} of {count} commands had keys");
}

/// The keys that the server reports for a guarded command, without the key of the lock.
fn keys_beside_lock(client: &mut Client, tag: &str, command: &[Vec<u8>], own: &[Key]) -> Vec<Key> {
    let mut both = keys_of(client, &guarded(tag, 1, command.to_vec()));
    let lock = Key { name: format!("{tag}lock").into(), flags: vec!["RO".into(), "access".into()] };
    let at = both.iter().position(|key| *key == lock).expect("the lock");
    both.remove(at);
    // If SPUBLISH is guarded, the server also reports its channel, with the flag `not_key`. For SPUBLISH alone, the
    // server does not report the channel.
    both.retain(|key| key.flags != ["not_key"]);
    // For the keys of a script alone, the server may report no flags. In a guard these keys have the flags of the key
    // specification of the script command.
    for (key, _) in both.iter_mut().zip(own).filter(|(_, own)| own.flags.is_empty()) {
        assert!(!key.flags.is_empty(), "{command:?}");
        key.flags.clear();
    }
    both
}

/// Whether the server may report different keys for a command alone and in a guard. If the syntax is wrong, the server
/// reports different keys to a module than to a client. For PFMERGE without sources the server reports no key, although
/// the command creates a key.
fn has_wrong_syntax(client: &mut Client, command: &[Vec<u8>]) -> bool {
    let is = |name: &str| command[0].eq_ignore_ascii_case(name.as_bytes());
    let fails = |client: &mut Client| matches!(client.call(in_script(command.to_vec())), Reply::Error(_));
    is("pfmerge") && command.len() == 2 || is("migrate") || fails(client)
}

/// A key of a command, and how the command uses it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    name: Vec<u8>,
    flags: Vec<String>,
}

fn keys_of(client: &mut Client, command: &[Vec<u8>]) -> Vec<Key> {
    let words = [&b"COMMAND"[..], b"GETKEYSANDFLAGS"].map(<[u8]>::to_vec);
    let reply = client.call(words.iter().chain(command).cloned().collect::<Vec<_>>());
    let Reply::Array(keys) = reply else { return Vec::new() };
    let key = |key: &Reply| {
        let [name, flags] = key.items() else { panic!("{key:?}") };
        Key { name: name.bytes().to_vec(), flags: flags.items().iter().map(Reply::text).collect() }
    };
    // The server reports the keys of ZINTERSTORE to a module in a different order than to a client, so the keys are
    // sorted.
    let mut keys: Vec<_> = keys.iter().map(key).collect();
    keys.sort();
    keys
}

#[test]
fn a_cluster_node_survives_any_guarded_command() {
    let cluster = Cluster::start_without_replicas(setup());
    let (owner, _) = cluster.owner_and_other("{tag}lock");
    let (mut admin, mut client) = (owner.client(), owner.client());
    let mut generator = Generator::new(&mut admin, "{tag}");
    see_same_keys(&mut client, &mut generator, rounds(1_000, 20_000));
    for _ in 0..rounds(40, 1_000) {
        let token = generator.prepare(&mut admin);
        let calls: Vec<_> = (0..BATCH)
            .map(|_| {
                let command = generator.harmless_command();
                guarded(generator.tag, token, command)
            })
            .collect();
        client.call_all(calls);
        assert_eq!(admin.call("PING"), Reply::Simple("PONG".into()));
    }
}
