//! Cut and damaged files: the server either loads the intact part and works, or refuses to start and logs the
//! reason.

use lockward_tests::{
    Client, Grant, Holder, Random, Refusal, Reply, Sent, Server, Setup, appended_files, commands_in,
    eventually, rounds,
};
use std::collections::BTreeSet;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

const KEYS: [&str; 5] = ["lock-0", "lock-1", "lock-2", "lock-3", "lock-4"];

/// The state that the recorded commands change: the locks without their times, and a counter that some transactions
/// change together with a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
struct State {
    tenures: [Option<(String, i64, i64)>; KEYS.len()],
    counter: Option<String>,
}

impl State {
    const EMPTY: Self = Self { tenures: [const { None }; KEYS.len()], counter: None };

    #[track_caller]
    fn of(client: &mut Client) -> Self {
        let tenures = KEYS.map(|key| {
            let holder = client.info(key)?.holders.remove(0);
            assert!(500_000 < holder.lease_left && holder.lease_left <= 900_000, "{holder:?}");
            Some((holder.owner, holder.holds, holder.token))
        });
        let counter = client.call("GET counter");
        Self { tenures, counter: (!counter.is_null()).then(|| counter.text()) }
    }

    /// The same state, but with this lock free.
    fn with_free(&self, key: &str) -> Self {
        let mut state = self.clone();
        let index = KEYS.iter().position(|other| *other == key).expect("one of the locks");
        state.tenures[index] = None;
        state
    }
}

/// The offsets of the ends of the units in an AOF. A unit is a command outside a transaction, or a whole transaction.
fn units(aof: &[u8]) -> Vec<usize> {
    let mut units = Vec::new();
    let mut in_transaction = false;
    for (command, end) in commands_in(aof) {
        match command[0].to_ascii_uppercase().as_slice() {
            b"SELECT" => {}
            b"MULTI" => in_transaction = true,
            b"EXEC" => in_transaction = false,
            _ if in_transaction => {}
            _ => units.push(end),
        }
        if command[0].eq_ignore_ascii_case(b"EXEC") {
            units.push(end);
        }
    }
    units
}

/// Whether an AOF ends at the end of a command, outside a transaction.
fn is_whole(aof: &[u8]) -> bool {
    let commands = commands_in(aof);
    let count =
        |name: &[u8]| commands.iter().filter(|(command, _)| command[0].eq_ignore_ascii_case(name)).count();
    commands.last().map_or(0, |(_, end)| *end) == aof.len() && count(b"MULTI") == count(b"EXEC")
}

/// A killed server, its AOF, and the states of its locks during the recording.
struct Recording {
    server: Server,
    path: PathBuf,
    aof: Vec<u8>,
    /// The state before the first unit, and the state after each unit.
    states: Vec<State>,
}

/// Records the content of the AOF and the state after each unit.
struct Recorder {
    server: Server,
    client: Client,
    path: PathBuf,
    states: Vec<State>,
}

impl Recorder {
    fn new() -> Self {
        let server = Setup::new().config("appendonly yes").config("appendfsync always").start();
        let client = server.client();
        let path = appended_files(&server).remove(0);
        Self { server, client, path, states: vec![State::EMPTY] }
    }

    fn holder(&mut self, key: &str) -> Option<String> {
        self.client.owner(key)
    }

    /// Runs one event loop iteration. The iteration must append one unit to the AOF, or no unit if the state has not
    /// changed.
    #[track_caller]
    fn iteration(&mut self, what: &str, act: impl FnOnce(&mut Client)) {
        let (units, before, state) = self.after(act);
        assert_eq!(units, usize::from(state != before), "{what}: from {before:?} to {state:?}");
        self.states.resize(self.states.len() + units, state);
    }

    /// Runs one event loop iteration that changes only a lease. The iteration must append one unit, although the states
    /// are equal, because a state does not contain leases.
    #[track_caller]
    fn renewal(&mut self, what: &str, act: impl FnOnce(&mut Client)) {
        let (units, before, state) = self.after(act);
        assert_eq!((units, &state), (1, &before), "{what}");
        self.states.push(state);
    }

    /// Runs one to three event loop iterations. If the AOF is cut between these iterations, a server that loads the AOF
    /// finds
    /// `key` free: the lock was freed, or its lease is over at the time of the load.
    #[track_caller]
    fn iterations(&mut self, what: &str, key: &str, act: impl FnOnce(&mut Client)) {
        let (units, before, state) = self.after(act);
        assert!((1..=3).contains(&units), "{what}: {units} units");
        self.states.resize(self.states.len() + units - 1, before.with_free(key));
        self.states.push(state);
    }

    /// Runs an action. Returns the number of units that the action appended, the state before the action, and the state
    /// after the action.
    #[track_caller]
    fn after(&mut self, act: impl FnOnce(&mut Client)) -> (usize, State, State) {
        act(&mut self.client);
        let state = State::of(&mut self.client);
        let before = self.states.last().expect("a state").clone();
        let units = units(&fs::read(&self.path).expect("an AOF")).len();
        (units + 1 - self.states.len(), before, state)
    }

    /// Records each kind of change that a lock can have.
    fn round(&mut self, round: usize) {
        let (key, other) = (KEYS[round % KEYS.len()], KEYS[(round + 1) % KEYS.len()]);
        let [a, b, c, d, e, f] = ["a", "b", "c", "d", "e", "f"].map(|owner| format!("{owner}{round}"));
        for key in [key, other] {
            if let Some(owner) = self.holder(key) {
                self.iteration("an end", |client| {
                    client.call(["LOCK.RELEASE", key, &owner, "ALL"]);
                });
            }
        }
        for request in [
            format!("LOCK.ACQUIRE {key} {a} PX 600000"),
            format!("LOCK.ACQUIRE {key} {a} PX 1"),
            format!("LOCK.ACQUIRE {key} {a} PX 800000"),
            format!("LOCK.RELEASE {key} {a}"),
            format!("LOCK.ACQUIRE {key} {b}"),
        ] {
            self.iteration(&request, |client| {
                client.call(request.as_str());
            });
        }
        self.renewal("a renewal", |client| {
            client.call(format!("LOCK.RENEW {key} {a} PX 700000")).int();
        });

        let wait = |owner: &str| format!("{key} {owner} BLOCK 0 PX 700000");
        let mut waiters = [&b, &c, &b].map(|owner| self.server.waiter(&wait(owner)));
        self.iteration("a hand-off with a re-entry", |client| {
            assert_eq!(client.call(format!("LOCK.RELEASE {key} {a} ALL")), Reply::Int(0));
            let [first, _, second] = &mut waiters;
            let Grant { token, .. } = first.reply().grant();
            assert_eq!(second.reply().grant(), Grant { token, holds: 2 });
        });
        let [_, mut last, _] = waiters;
        self.iteration("a transaction with a hand-off", |client| {
            let [freed, .., taken] = client.transact([
                &format!("LOCK.RELEASE {key} {b} ALL"),
                "INCR counter",
                &format!("LOCK.ACQUIRE {other} {d} PX 700000"),
            ]);
            assert_eq!((freed, taken.grant().holds), (Reply::Int(0), 1));
            last.reply().grant();
        });
        self.iteration("a script", |client| {
            let script = "redis.call('LOCK.ACQUIRE', KEYS[1], ARGV[1], 'PX', 800000) \
                          redis.call('LOCK.RELEASE', KEYS[2], ARGV[2]) \
                          redis.call('LOCK.ACQUIRE', KEYS[2], ARGV[3], 'PX', 700000) \
                          return redis.call('INCR', 'counter')";
            client.call(["EVAL", script, "2", key, other, &c, &d, &e]).int();
        });
        let mut waiter = self.server.waiter(&wait(&f));
        self.iterations("the end of a lease", key, |client| {
            client.call(format!("LOCK.RENEW {key} {c} PX 30")).int();
            waiter.reply().grant();
        });
        let mut waiter = self.server.waiter(&wait(&a));
        self.iterations("a deletion", key, |client| {
            assert_eq!(client.call(["DEL", key]), Reply::Int(1));
            waiter.reply().grant();
        });
    }

    fn finish(mut self) -> Recording {
        self.server.kill();
        let aof = fs::read(&self.path).expect("an AOF");
        assert_eq!(units(&aof).len() + 1, self.states.len());
        Recording { server: self.server, path: self.path, aof, states: self.states }
    }
}

fn recording() -> Recording {
    let mut recorder = Recorder::new();
    for round in 0..6 {
        recorder.round(round);
    }
    recorder.finish()
}

impl Recording {
    fn start_with(&mut self, aof: &[u8]) -> Result<(), Refusal> {
        fs::write(&self.path, aof).expect("an AOF");
        self.server.try_to_start_again()
    }

    /// Starts the server with the first `length` bytes of its AOF.
    fn start_cut(&mut self, length: usize) -> Result<(), Refusal> {
        fs::write(&self.path, &self.aof[..length]).expect("an AOF");
        self.server.try_to_start_again()
    }

    #[track_caller]
    fn assert_state_after(&self, length: usize) {
        let units = units(&self.aof).iter().filter(|end| **end <= length).count();
        assert_eq!(
            State::of(&mut self.server.client()),
            self.states[units],
            "cut at {length}, {units} units"
        );
    }
}

#[test]
fn a_load_of_an_aof_cut_anywhere_leaves_no_event_loop_iteration_half_done() {
    let mut random = Random::new();
    let mut recording = recording();
    let length = recording.aof.len();
    let ends = units(&recording.aof);
    // With LOCKWARD_LONG, the test also cuts at every offset of the last seven units, which are a deletion, ends of
    // leases, and a script.
    let last = rounds(length, ends[ends.len() - 8]);
    let mut cuts: BTreeSet<usize> = (last..length).collect();
    cuts.extend(
        (0..rounds(15, 200)).map(|_| usize::try_from(random.within(0..length as i64)).expect("an offset")),
    );
    cuts.extend([0, 1, length - 1, length]);
    for cut in &cuts {
        recording.start_cut(*cut).unwrap_or_else(|refusal| panic!("{}", refusal.log));
        recording.assert_state_after(*cut);
        recording.server.kill();
    }
    println!("{} bytes, {} units; {} cuts loaded", length, ends.len(), cuts.len());
}

#[test]
fn a_server_starts_with_a_cut_aof_and_appends_to_it() {
    let mut recording = recording();
    let cut = recording.aof.len() - 5;
    recording.start_cut(cut).expect("a start");
    let token = recording.server.client().acquire("later A PX 600000").token;
    recording.server.kill_and_start_again();
    recording.assert_state_after(cut);
    assert_eq!(recording.server.client().holder("later").tenure(), ("A", 1, token));
}

#[test]
fn an_aof_rewrite_saves_the_commands_after_a_torn_transaction() {
    const MULTI: &[u8] = b"MULTI\r\n";
    let mut recording = recording();
    let begin =
        recording.aof.windows(MULTI.len()).rposition(|window| window == MULTI).expect("a transaction");
    let (_, first) =
        commands_in(&recording.aof).into_iter().find(|(_, end)| *end > begin + MULTI.len()).expect("more");
    let cut = first + 5;
    recording.start_cut(cut).expect("a start");
    // The AOF still has the MULTI of the torn transaction. Without a rewrite of the AOF, the next restart would lose
    // all commands after the MULTI.
    let mut client = recording.server.client();
    assert!(!matches!(client.call("BGREWRITEAOF"), Reply::Error(_)));
    eventually("the AOF is rewritten", || {
        client.stat("persistence", "aof_rewrite_scheduled") == 0
            && client.stat("persistence", "aof_rewrite_in_progress") == 0
    });
    let token = client.acquire("later A PX 600000").token;
    recording.server.kill_and_start_again();
    recording.assert_state_after(cut);
    assert_eq!(recording.server.client().holder("later").tenure(), ("A", 1, token));
}

#[test]
fn with_aof_load_truncated_no_a_cut_aof_is_refused() {
    let mut random = Random::new();
    let mut recording = recording();
    recording.server.change_setup(|setup| setup.config("aof-load-truncated no"));
    let length = recording.aof.len();
    let ends = units(&recording.aof);
    let (mut loads, mut refusals) = (0, 0);
    let whole = ends[ends.len() / 2];
    let chosen =
        (0..rounds(6, 100)).map(|_| usize::try_from(random.within(1..length as i64)).expect("an offset"));
    for cut in chosen.chain([whole, length]) {
        let aof = recording.aof[..cut].to_vec();
        match recording.start_cut(cut) {
            Ok(()) => {
                assert!(is_whole(&aof), "cut at {cut}");
                recording.assert_state_after(cut);
                recording.server.kill();
                loads += 1;
            }
            Err(refusal) => {
                assert!(!is_whole(&aof) && refusal.is_clean(), "cut at {cut}: {refusal:?}");
                assert!(refusal.log.contains("Unexpected end of file"), "{}", refusal.log);
                assert_eq!(fs::read(&recording.path).expect("an AOF"), aof);
                refusals += 1;
            }
        }
    }
    println!("{loads} loads, {refusals} refusals");
    assert!(loads >= 2 && refusals > 0);
}

/// The module's commands in an AOF, and their offsets. The tests damage only these commands.
fn ours(aof: &[u8]) -> Vec<(Sent, Range<usize>)> {
    let (mut ours, mut begin) = (Vec::new(), 0);
    for (command, end) in commands_in(aof) {
        if command[0].starts_with(b"LOCK.") {
            ours.push((command, begin..end));
        }
        begin = end;
    }
    ours
}

/// The offset of each byte of a command in an AOF, with the bytes that may replace it. Digits of a length or a count
/// are replaced by digits, and bytes of an argument by any bytes.
fn bytes_of(command: &Sent, begin: usize) -> Vec<(usize, Range<i64>)> {
    const DIGITS: Range<i64> = 0x30..0x3a;
    const BYTES: Range<i64> = 0..0x100;
    // The module's commands have fewer than ten arguments, so the count of arguments has one digit.
    let mut bytes = vec![(begin + 1, DIGITS)];
    let mut at = begin + "*3\r\n".len();
    for argument in command {
        let digits = argument.len().to_string().len();
        bytes.extend((at + 1..at + 1 + digits).map(|digit| (digit, DIGITS)));
        at += 1 + digits + 2;
        bytes.extend((at..at + argument.len()).map(|byte| (byte, BYTES)));
        at += argument.len() + 2;
    }
    bytes
}

/// An AOF with one damaged command, and a description of the damage.
fn damaged(aof: &[u8], random: &mut Random) -> (Vec<u8>, String) {
    let (command, Range { start, end }) = random.one_of(&ours(aof)).clone();
    let text = aof[start..end].escape_ascii();
    match random.within(0..6) {
        0 => ([&aof[..start], &aof[end..]].concat(), format!("left out: {text}")),
        1 => ([&aof[..end], &aof[start..]].concat(), format!("twice: {text}")),
        _ => {
            let (at, others) = random.one_of(&bytes_of(&command, start)).clone();
            let mut damaged = aof.to_vec();
            while damaged[at] == aof[at] {
                damaged[at] = u8::try_from(random.within(others.clone())).expect("a byte");
            }
            let what = format!("byte {} is {:#x}: {text}", at - start, damaged[at]);
            (damaged, what)
        }
    }
}

/// Asserts that the loaded locks can be saved, loaded again and used.
#[track_caller]
fn assert_sound(server: &Server, what: &str) {
    let mut client = server.client();
    let tenure = |holder: Holder| (holder.owner, holder.holds, holder.token);
    let look = |client: &mut Client| {
        KEYS.map(|key| client.info(key).map(|info| info.holders.into_iter().map(tenure).collect::<Vec<_>>()))
    };
    let before = look(&mut client);
    assert_eq!(client.try_call("DEBUG RELOAD"), Ok(Reply::ok()), "{what}: {before:?}\n{}", server.log());
    for (before, after) in before.into_iter().zip(look(&mut client)) {
        // If the lock is free after the reload, its lease has ended meanwhile.
        assert!(after.is_none() || after == before, "{what}: {before:?} {after:?}");
    }
    for key in KEYS {
        client.call(format!("LOCK.ACQUIRE {key} other"));
        client.call(format!("LOCK.RELEASE {key} other"));
        client.call(format!("DEL {key}"));
        assert_eq!(client.acquire(&format!("{key} other")).holds, 1, "{what}");
    }
}

#[test]
fn no_damage_to_an_aof_crashes_the_server() {
    let mut random = Random::new();
    let mut recording = recording();
    // With the server's default setting `ignore`, the server logs an error of a command in the AOF, and continues.
    recording.server.change_setup(|setup| setup.config("propagation-error-behavior ignore"));
    let (mut loads, mut refusals, mut logged) = (0, 0, 0);
    for _ in 0..rounds(25, 400) {
        let (aof, what) = damaged(&recording.aof, &mut random);
        match recording.start_with(&aof) {
            Ok(()) => {
                let log = recording.server.log();
                logged += usize::from(log.contains("== CRITICAL =="));
                assert_sound(&recording.server, &what);
                recording.server.kill();
                fs::remove_file(recording.server.dir().join("server.log")).expect("a log");
                loads += 1;
            }
            Err(refusal) => {
                assert!(refusal.is_clean(), "{what}: {refusal:?}");
                refusals += 1;
            }
        }
    }
    println!("{loads} loads, of which {logged} with an error in the log; {refusals} refusals");
    assert!(logged + refusals > 0, "no damage was noticed");
}

/// A killed server with locks in its snapshot, the path of the snapshot, and the bytes of the snapshot.
fn snapshot() -> (Server, PathBuf, Vec<u8>) {
    let setup = Setup::new().config("rdbchecksum no").config("rdbcompression no");
    let mut server = setup.start();
    let mut client = server.client();
    for (number, key) in KEYS.iter().enumerate() {
        for _ in 0..=number {
            client.acquire(&format!("{key} {} PX 700000", "owner".repeat(1 + number * 20)));
        }
    }
    assert_eq!(client.call("SAVE"), Reply::ok());
    server.kill();
    let path = server.dir().join("dump.rdb");
    let bytes = fs::read(&path).expect("a snapshot");
    (server, path, bytes)
}

/// The ranges of the locks' payloads in a snapshot.
fn payloads(snapshot: &[u8]) -> Vec<Range<usize>> {
    const TYPE_AND_KIND: usize = 10;
    let find = |key: &str| snapshot.windows(key.len()).position(|window| window == key.as_bytes());
    KEYS.iter()
        .map(|key| {
            let at = find(key).expect("a key") + key.len() + TYPE_AND_KIND;
            // The two highest bits say how many bytes the length takes. The payloads in this test are so
            // short that their length takes one or two bytes.
            let (length, size) = match snapshot[at] {
                short @ ..0x40 => (short.into(), 1),
                long => (usize::from(long & 0x3f) << 8 | usize::from(snapshot[at + 1]), 2),
            };
            at + size..at + size + length
        })
        .collect()
}

fn start_from(server: &mut Server, path: &Path, bytes: &[u8]) -> Result<(), Refusal> {
    fs::write(path, bytes).expect("a snapshot");
    server.try_to_start_again()
}

#[test]
fn a_snapshot_that_was_cut_is_refused() {
    let mut random = Random::new();
    let (mut server, path, bytes) = snapshot();
    let length = bytes.len();
    // If a file ends between two parts of a module value, the server refuses the file, and then checks the file to log
    // the reason. In this check the server hangs: https://github.com/redis/redis/pull/15034. So the test does not cut
    // at these offsets.
    let hangs: Vec<usize> = payloads(&bytes)
        .into_iter()
        .flat_map(|payload| {
            let frame = if payload.len() < 0x40 { 2 } else { 3 };
            [payload.start - frame, payload.end]
        })
        .collect();
    let cuts: Vec<usize> = (0..length)
        .filter(|_| random.once_in(rounds(length as u64 / 10, 4)))
        .chain([length - 1])
        .filter(|cut| !hangs.contains(cut))
        .collect();
    for cut in &cuts {
        let refusal = start_from(&mut server, &path, &bytes[..*cut]).expect_err("a refusal");
        assert!(refusal.is_clean(), "cut at {cut}: {refusal:?}");
    }
    println!("{length} bytes, {} cuts refused", cuts.len());
    start_from(&mut server, &path, &bytes).expect("a start");
    assert_eq!(server.client().holder("lock-4").holds, 5);
}

#[test]
fn no_damage_to_a_lock_in_a_snapshot_crashes_the_server() {
    let mut random = Random::new();
    let (mut server, path, bytes) = snapshot();
    // The first 32 bytes of each payload: all numbers before the owner's name, and some bytes of the name.
    let ours: Vec<usize> = payloads(&bytes).into_iter().flat_map(|payload| payload.take(32)).collect();
    let (mut loads, mut refusals) = (0, 0);
    for _ in 0..rounds(20, 400) {
        let at = random.one_of(&ours);
        let mut damaged = bytes.clone();
        damaged[at] ^= u8::try_from(random.within(1..0x100)).expect("a byte");
        let what = format!("{:#x} to {:#x} at {at}", bytes[at], damaged[at]);
        match start_from(&mut server, &path, &damaged) {
            Ok(()) => {
                assert_sound(&server, &what);
                server.kill();
                loads += 1;
            }
            Err(refusal) => {
                assert!(refusal.is_clean(), "{what}: {refusal:?}");
                refusals += 1;
            }
        }
    }
    println!("{loads} loads, {refusals} refusals");
    assert!(refusals > 0);
}
