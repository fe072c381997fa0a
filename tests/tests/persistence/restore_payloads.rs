//! Damaged and forged RESTORE payloads: the server refuses them, or they create an ordinary lock.

use lockward_tests::{Client, Info, Random, Reply, Server, Setup, eventually, rounds};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::TcpListener;

/// The version of the stored encoding.
const VERSION: u8 = 1;
/// The record type of a holder with weight 1.
const PUT: u8 = 1;
/// The record type of a holder with a weight above 1.
const WEIGHTED_PUT: u8 = 6;
/// The longest span, in milliseconds: a thousand years.
const LONGEST: u64 = 31_536_000_000_000;
const LARGEST_TOKEN: u64 = (1 << 53) - 1;
const HOUR_MS: u64 = 3_600_000;

/// A number in the stored encoding: seven bits in each byte, the lowest bits first.
pub(crate) fn varint(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number > 0x7f {
        bytes.push(u8::try_from(number & 0x7f).unwrap() | 0x80);
        number >>= 7;
    }
    bytes.push(u8::try_from(number).unwrap());
    bytes
}

/// A holder in a payload. Every number may be wrong.
#[derive(Clone)]
struct Put {
    token: u64,
    holds: u64,
    slots: u64,
    /// A weight of 1 is not written.
    weight: u64,
    left: u64,
    wall_deadline: u64,
    held_for: u64,
    owner_length: Option<u64>,
    owner: Vec<u8>,
}

impl Put {
    /// A holder as a server writes it at the time `now`, which is in milliseconds since the epoch.
    fn honest(owner: &[u8], token: u64, now: u64) -> Self {
        let (left, owner) = (HOUR_MS, owner.to_vec());
        let wall_deadline = now + left;
        let (holds, slots, weight, held_for, owner_length) = (1, 1, 1, 5, None);
        Self { token, holds, slots, weight, left, wall_deadline, held_for, owner_length, owner }
    }

    fn bytes(&self) -> Vec<u8> {
        let Self { token, holds, slots, left, wall_deadline, held_for, .. } = *self;
        let length = self.owner_length.unwrap_or(self.owner.len() as u64);
        let numbers = [token, holds, slots, left, wall_deadline, held_for, length];
        let begin = match self.weight {
            1 => vec![PUT],
            weight => [vec![WEIGHTED_PUT], varint(weight)].concat(),
        };
        [begin, numbers.into_iter().flat_map(varint).collect(), self.owner.clone()].concat()
    }
}

fn payload(puts: &[Put]) -> Vec<u8> {
    [vec![VERSION], puts.iter().flat_map(Put::bytes).collect()].concat()
}

/// The bytes around the payload of a lock in a DUMP: type, module and version before the payload, end mark and checksum
/// after the payload.
#[derive(Clone)]
struct Frame {
    head: Vec<u8>,
    tail: Vec<u8>,
}

impl Frame {
    const HEAD: usize = 10;
    const STRING: u8 = 5;

    #[track_caller]
    fn of(dump: &[u8]) -> Self {
        assert_eq!((dump[Self::HEAD], dump[dump.len() - 11]), (Self::STRING, 0), "{}", dump.escape_ascii());
        Self { head: dump[..Self::HEAD].to_vec(), tail: dump[dump.len() - 11..].to_vec() }
    }

    /// A DUMP with this payload.
    fn around(&self, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap();
        let length = match length {
            0..0x40 => vec![length as u8],
            0x40..0x4000 => vec![0x40 | (length >> 8) as u8, length as u8],
            _ => [&[0x80], &length.to_be_bytes()[..]].concat(),
        };
        [&self.head, &[Self::STRING][..], &length, payload, &self.tail].concat()
    }

    /// The same frame with the number of the next encoding version.
    fn of_the_next_version(&self) -> Self {
        let mut next = self.clone();
        // The version is the lowest ten bits of the module's number.
        *next.head.last_mut().unwrap() += 1;
        next
    }
}

/// A server that accepts payloads with a wrong checksum. Also returns a connection, the frame of the server's DUMPs,
/// and the server's time in milliseconds.
#[track_caller]
fn credulous() -> (Server, Client, Frame, u64) {
    credulous_with(Setup::new())
}

#[track_caller]
fn credulous_with(setup: Setup) -> (Server, Client, Frame, u64) {
    let server = setup.start();
    let mut client = server.client();
    assert_eq!(client.call("DEBUG SET-SKIP-CHECKSUM-VALIDATION 1"), Reply::ok());
    let token = client.acquire("lock A").token;
    let frame = Frame::of(client.call("DUMP lock").bytes());
    client.call("DEL lock");
    (server, client, frame, u64::try_from(token).unwrap() / 1_000)
}

#[track_caller]
fn restore(client: &mut Client, key: &str, dump: &[u8]) -> Reply {
    client.call([b"RESTORE".as_slice(), key.as_bytes(), b"0", dump, b"REPLACE"])
}

#[test]
fn a_payload_of_the_next_version_is_refused() {
    let (_server, mut client, frame, now) = credulous();
    let put = payload(&[Put::honest(b"A", now * 1_000, now)]);
    assert_eq!(restore(&mut client, "lock", &frame.around(&put)), Reply::ok());
    let mut next = put.clone();
    next[0] += 1;
    for dump in [frame.around(&next), frame.of_the_next_version().around(&put)] {
        assert_eq!(restore(&mut client, "other", &dump).error(), "ERR Bad data format");
    }
    assert_eq!(client.call("KEYS *"), Reply::Array(vec![Reply::bulk("lock")]));
}

#[test]
fn a_payload_with_an_impossible_owner_token_or_number_is_refused() {
    let (_server, mut client, frame, now) = credulous();
    let honest = || Put::honest(b"A", now * 1_000, now);
    let long = |length: usize| Put { owner: vec![b'A'; length], ..honest() };
    let day_ahead = (now + 24 * HOUR_MS) * 1_000;
    let with_mode = |owner: &[u8], token: u64, slots: u64, weight: u64| Put {
        slots,
        weight,
        token,
        owner: owner.to_vec(),
        ..honest()
    };
    let cases: [(&str, Vec<Put>, bool); 34] = [
        ("an honest one", vec![honest()], true),
        ("nobody", vec![], false),
        ("an owner of 1,024 bytes", vec![long(1_024)], true),
        ("an owner of 1,025 bytes", vec![long(1_025)], false),
        ("an owner of no bytes", vec![long(0)], false),
        ("an owner of 2^63 bytes", vec![Put { owner_length: Some(1 << 63), ..honest() }], false),
        ("an owner of 2^64 - 1 bytes", vec![Put { owner_length: Some(u64::MAX), ..honest() }], false),
        ("an owner longer than the payload", vec![Put { owner_length: Some(2), ..honest() }], false),
        ("token 0", vec![Put { token: 0, ..honest() }], false),
        ("token 1", vec![Put { token: 1, ..honest() }], true),
        ("a token an hour ahead", vec![Put { token: day_ahead - HOUR_MS * 1_000, ..honest() }], true),
        ("a token a day ahead", vec![Put { token: day_ahead + 60_000_000, ..honest() }], false),
        ("the largest token", vec![Put { token: LARGEST_TOKEN, ..honest() }], false),
        ("a token too large", vec![Put { token: LARGEST_TOKEN + 1, ..honest() }], false),
        ("no holds", vec![Put { holds: 0, ..honest() }], false),
        ("the most holds", vec![Put { holds: u32::MAX.into(), ..honest() }], true),
        ("holds too many", vec![Put { holds: 1 << 32, ..honest() }], false),
        ("the most slots", vec![Put { slots: 1_000_000, ..honest() }], true),
        ("slots too many", vec![Put { slots: 1_000_001, ..honest() }], false),
        ("the largest weight", vec![with_mode(b"A", 8, 1_000_000, 1_000_000)], true),
        ("a weight too large", vec![with_mode(b"A", 8, 1_000_000, 1_000_001)], false),
        ("a weight of 0", vec![with_mode(b"A", 8, 5, 0)], false),
        ("a weight above the limit", vec![with_mode(b"A", 8, 5, 6)], false),
        ("a weight without a limit, by a downgrade", vec![with_mode(b"A", 8, 0, 2)], true),
        ("weights that fit", vec![with_mode(b"A", 8, 5, 3), with_mode(b"B", 7, 6, 2)], true),
        ("weights that do not fit", vec![with_mode(b"A", 8, 5, 3), with_mode(b"B", 7, 6, 3)], false),
        ("a reader and a writer", vec![with_mode(b"A", 8, 0, 1), with_mode(b"B", 7, 1, 1)], false),
        ("the longest lease", vec![Put { left: LONGEST, wall_deadline: LONGEST, ..honest() }], true),
        ("a lease too long", vec![Put { left: LONGEST + 1, ..honest() }], false),
        ("an end beyond every clock", vec![Put { wall_deadline: i64::MAX as u64, ..honest() }], true),
        ("an end that is no number", vec![Put { wall_deadline: 1 << 63, ..honest() }], false),
        ("held for ever", vec![Put { held_for: LONGEST, ..honest() }], true),
        ("two exclusive holders", vec![honest(), Put { token: 7, owner: b"B".to_vec(), ..honest() }], false),
        ("an owner twice", vec![Put { slots: 0, ..honest() }, Put { slots: 0, token: 7, ..honest() }], false),
    ];
    for (what, puts, accepted) in cases {
        let dump = frame.around(&payload(&puts));
        let reply = restore(&mut client, "lock", &dump);
        if accepted {
            assert_eq!(reply, Reply::ok(), "{what}");
            see_lock_like_any_other(&mut client, "lock", what);
        } else {
            assert_eq!(reply.error(), "ERR Bad data format", "{what}");
        }
        assert_eq!(client.call("DBSIZE"), Reply::Int(0), "{what}");
    }
    // A refused payload had a token more than a day ahead. This token must not raise the token of a later grant.
    assert!(client.acquire("lock A").token < i64::try_from(day_ahead).unwrap());
}

/// Checks that a restored lock can be read, dumped, restored again, saved, loaded, renewed and released.
#[track_caller]
fn see_lock_like_any_other(client: &mut Client, key: &str, what: &str) {
    let info = client.info(key).unwrap_or_else(|| panic!("{what}: no lock"));
    let again = client.call(format!("DUMP {key}"));
    assert_eq!(restore(client, "again", again.bytes()), Reply::ok(), "{what}: a dumped lock can be restored");
    assert_eq!(client.call("DEBUG RELOAD"), Reply::ok(), "{what}: the server can load what it has saved");
    let holders = |info: Info| -> Vec<(String, i64, i64, [i64; 2])> {
        info.holders
            .into_iter()
            .map(|holder| (holder.owner, holder.holds, holder.token, [holder.slots, holder.weight]))
            .collect()
    };
    let before = holders(info);
    for key in [key, "again"] {
        assert_eq!(client.info(key).map(holders).as_ref(), Some(&before), "{what}: {key}");
        for (left, (owner, ..)) in before.iter().enumerate().rev() {
            assert!(client.call(["LOCK.RENEW", key, owner]).int() > 0, "{what}");
            assert_eq!(client.call(["LOCK.RELEASE", key, owner, "ALL"]), Reply::Int(0), "{what}");
            assert_eq!(client.info(key).map_or(0, |info| info.holders.len()), left, "{what}");
        }
    }
}

#[test]
fn a_restored_lease_of_any_length_can_be_saved_loaded_renewed_and_replicated() {
    // If the module saved the longest lease in a snapshot, but refused this lease at the load, the server would not
    // start.
    let (mut primary, mut client, frame, now) = credulous_with(Setup::new().config("save 3600 1000000"));
    let replica = Server::start_replica_of(&primary);
    assert_eq!(replica.client().call("DEBUG SET-SKIP-CHECKSUM-VALIDATION 1"), Reply::ok());
    for (number, left) in
        [0, 600_000, HOUR_MS, 315_360_000_001, LONGEST - now, LONGEST - 1, LONGEST].iter().enumerate()
    {
        for (other, wall_deadline) in
            [0, now, now + HOUR_MS, LONGEST - 1, LONGEST, 2 * LONGEST].iter().enumerate()
        {
            let put = Put { left: *left, wall_deadline: *wall_deadline, ..Put::honest(b"A", now, now) };
            let (key, dump) = (format!("lock-{number}-{other}"), frame.around(&payload(&[put])));
            assert_eq!(restore(&mut client, &key, &dump), Reply::ok());
            let over = *left == 0 || *wall_deadline <= now;
            let owner = if over { "B" } else { "A" };
            client.call(["LOCK.ACQUIRE", &key, "B", "PX", "600000"]);
            assert_eq!(client.owner(&key).as_deref(), Some(owner), "{left} {wall_deadline}");
        }
    }
    let locks = client.call("DBSIZE");
    replica.see_in_sync_with(&primary);
    assert_eq!(replica.client().call("DEBUG DIGEST"), client.call("DEBUG DIGEST"));
    // Redis 8 refuses SAVE while the child process runs that writes the snapshot for the replica.
    eventually("a snapshot", || client.call("SAVE") == Reply::ok());
    primary.kill_and_start_again();
    assert_eq!(primary.client().call("DBSIZE"), locks);
    let late = Server::start_replica_of(&primary);
    assert_eq!(late.client().call("DBSIZE"), locks);
}

/// Valid payloads to damage.
#[track_caller]
fn originals(client: &mut Client, now: u64) -> Vec<Vec<Put>> {
    let put = |number: u64, owner: &[u8]| Put::honest(owner, now * 1_000 + number, now);
    let crowd = |count: u64| -> Vec<Put> {
        let owner = |number: u64| format!("owner-{number}");
        (0..count).map(|number| Put { slots: 0, ..put(number, owner(number).as_bytes()) }).collect()
    };
    assert_eq!(client.call("DBSIZE"), Reply::Int(0));
    vec![
        // An owner of the form `UUID:thread`. Such an owner is stored as 0 in place of a length, the bytes of
        // the UUID, and the thread plus one.
        vec![Put {
            owner_length: Some(0),
            ..put(1, b"\x0f\x8f\xad\x5b\xd9\xcb\x46\x9f\xa1\x65\x70\x86\x77\x28\x95\x0e\x2b")
        }],
        vec![Put { holds: 70_000, ..put(2, b"A") }],
        vec![put(3, &[0xff; 1_024])],
        vec![Put { slots: 2, ..put(4, b"B") }, Put { slots: 3, ..put(5, b"C") }],
        vec![Put { slots: 9, weight: 4, ..put(4, b"B") }, Put { slots: 8, weight: 3, ..put(5, b"C") }],
        crowd(3),
        crowd(300),
    ]
}

/// Damages a few places: changes, removes, doubles or inserts bytes, or cuts the rest off.
fn damage(bytes: &mut Vec<u8>, from: usize, random: &mut Random) {
    for _ in 0..random.within(1..4) {
        let at = from + usize::try_from(random.within(0..(bytes.len() - from + 1) as i64)).unwrap();
        let some = usize::try_from(random.within(1..12)).unwrap();
        let end = (at + some).min(bytes.len());
        match random.within(0..7) {
            0 if at < bytes.len() => bytes[at] ^= 1 << random.within(0..8),
            1 if at < bytes.len() => bytes[at] = random.one_of(&[0x00, 0x01, 0x02, 0x7f, 0x80, 0x81, 0xff]),
            2 => bytes.truncate(at),
            3 => drop(bytes.drain(at..end)),
            4 => drop(bytes.splice(at..at, bytes[at..end].to_vec())),
            5 => drop(bytes.splice(at..at, vec![0x80; some])),
            _ => drop(bytes.splice(at..at, (0..some).map(|_| random.number() as u8).collect::<Vec<_>>())),
        }
    }
}

/// A wrong number: a limit, a limit plus one, or a random number.
fn lie(random: &mut Random) -> u64 {
    let edges =
        [0, 1, 0x7f, 0x80, 1_000_000, u32::MAX.into(), LARGEST_TOKEN, LONGEST, i64::MAX as u64, u64::MAX];
    match random.within(0..3) {
        0 => random.one_of(&edges),
        1 => random.one_of(&edges).wrapping_add(1),
        _ => random.number() >> random.within(0..64),
    }
}

/// A damaged DUMP that still has the type and the module number of a lock.
fn damaged(originals: &[Vec<Put>], frame: &Frame, random: &mut Random) -> Vec<u8> {
    let mut puts = random.one_of(originals);
    match random.within(0..4) {
        // The frame is valid, the payload is damaged.
        0 => {
            let mut payload = payload(&puts);
            damage(&mut payload, 0, random);
            frame.around(&payload)
        }
        // The payload is well formed, but has wrong numbers.
        1 => {
            for _ in 0..random.within(1..3) {
                let at = usize::try_from(random.number() % puts.len() as u64).unwrap();
                let number = lie(random);
                let put = &mut puts[at];
                match random.within(0..10) {
                    0 => put.token = number,
                    1 => put.holds = number,
                    2 => put.slots = number,
                    3 => put.left = number,
                    4 => put.wall_deadline = number,
                    5 => put.held_for = number,
                    6 => put.owner_length = Some(number),
                    7 => put.weight = number,
                    8 => (put.left, put.wall_deadline) = (LONGEST, LONGEST),
                    _ => put.owner = vec![b'x'; usize::try_from(random.within(0..2_000)).unwrap()],
                }
            }
            frame.around(&payload(&puts))
        }
        // The payload has records of two locks.
        2 => {
            let other = random.one_of(originals);
            let (here, there) =
                (random.number() as usize % (puts.len() + 1), random.number() as usize % other.len());
            puts.truncate(here);
            puts.extend_from_slice(&other[there..]);
            frame.around(&payload(&puts))
        }
        // The whole DUMP is damaged.
        _ => {
            let mut dump = frame.around(&payload(&puts));
            damage(&mut dump, Frame::HEAD - 1, random);
            dump
        }
    }
}

#[test]
fn no_damaged_payload_crashes_the_server() {
    const AT_ONCE: usize = 200;
    let mut random = Random::new();
    let (_server, mut client, frame, now) = credulous_with(Setup::new().config("rdbcompression no"));
    let originals = originals(&mut client, now);
    for original in &originals {
        let dump = frame.around(&payload(original));
        assert_eq!(restore(&mut client, "lock", &dump), Reply::ok());
        assert_eq!(client.call("DUMP lock").bytes().len(), dump.len(), "the server's own payload is as long");
    }
    client.call("FLUSHALL");
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for _ in 0..rounds(20, 1_000) {
        let dumps: Vec<Vec<u8>> = (0..AT_ONCE).map(|_| damaged(&originals, &frame, &mut random)).collect();
        let keys: Vec<String> = (0..AT_ONCE).map(|number| format!("lock-{number}")).collect();
        let commands = keys.iter().zip(&dumps).map(|(key, dump)| {
            let more: &[&[u8]] =
                random.one_of(&[&[][..], &[b"IDLETIME", b"7"], &[b"FREQ", b"7"], &[b"ABSTTL"]]);
            let ttl: &[u8] = if more == [b"ABSTTL"] { b"99999999999999" } else { b"0" };
            [&[b"RESTORE", key.as_bytes(), ttl, dump, b"REPLACE"], more].concat()
        });
        let replies = client.call_all(commands.collect::<Vec<_>>());
        let mut accepted = Vec::new();
        for (key, reply) in keys.iter().zip(replies) {
            match &reply {
                Reply::Simple(ok) if ok == "OK" => accepted.push(key.as_str()),
                Reply::Error(_) => {}
                other => panic!("{key}: {other:?}"),
            }
            let text = if let Reply::Error(text) = reply { text } else { "OK".into() };
            *counts.entry(text).or_default() += 1;
        }
        assert_eq!(client.call("DBSIZE"), Reply::Int(accepted.len() as i64));
        see_sound(&mut client, &accepted);
    }
    println!("{counts:?}");
    let clear = ["OK", "ERR Bad data format", "ERR DUMP payload version or checksum are wrong"];
    assert!(counts.keys().all(|text| clear.contains(&text.as_str())), "{counts:?}");
    assert!(counts["OK"] > 0 && counts["ERR Bad data format"] > 0, "{counts:?}");
}

/// Checks that restored locks can be dumped, restored again, saved, loaded, read and released.
#[track_caller]
fn see_sound(client: &mut Client, keys: &[&str]) {
    let dumps = client.call_all(keys.iter().map(|key| ["DUMP", key]).collect::<Vec<_>>());
    let again: Vec<[&[u8]; 5]> = keys
        .iter()
        .zip(&dumps)
        .map(|(key, dump)| [b"RESTORE".as_slice(), key.as_bytes(), b"0", dump.bytes(), b"REPLACE"])
        .collect();
    let replies = client.call_all(again);
    assert!(replies.iter().all(|reply| *reply == Reply::ok()), "a dumped lock can be restored: {replies:?}");
    assert_eq!(client.call("DEBUG RELOAD"), Reply::ok());
    let all = |key: &&str| format!("LOCK.INFO {key} HOLDERS 1000");
    let infos = client.call_all(keys.iter().map(all).collect::<Vec<_>>());
    let mut releases = Vec::new();
    for (key, info) in keys.iter().zip(&infos).filter(|(_, info)| !info.is_null()) {
        let [smallest, weight, holding] = ["slots", "weight", "holding"].map(|field| info.field(field).int());
        let holders = info.field("holders").items();
        assert!(!holders.is_empty() && (smallest == 0 || weight <= smallest), "{key}: {info:?}");
        assert_eq!(holding, holders.len() as i64, "{key}: {info:?}");
        assert_eq!(
            weight,
            holders.iter().map(|holder| holder.field("weight").int()).sum::<i64>(),
            "{key}: {info:?}"
        );
        let (mut owners, mut tokens) = (BTreeSet::new(), BTreeSet::new());
        for holder in holders {
            let int = |name: &str| holder.field(name).int();
            assert!((1..=u32::MAX.into()).contains(&int("holds")), "{key}: {holder:?}");
            assert!((0..=LONGEST as i64).contains(&int("lease-left")), "{key}: {holder:?}");
            assert!((0..=LONGEST as i64).contains(&int("held-for")), "{key}: {holder:?}");
            assert!((1..LARGEST_TOKEN as i64).contains(&int("token")), "{key}: {holder:?}");
            owners.insert(holder.field("owner").bytes());
            tokens.insert(int("token"));
            releases.push([
                b"LOCK.RELEASE".as_slice(),
                key.as_bytes(),
                holder.field("owner").bytes(),
                b"ALL",
            ]);
        }
        let distinct = (owners.len(), tokens.len());
        assert_eq!(distinct, (holders.len(), holders.len()), "an owner or a token twice: {key}: {info:?}");
    }
    for (release, reply) in releases.iter().zip(client.call_all(releases.clone())) {
        let over = matches!(&reply, Reply::Error(text) if text.starts_with("NOTHELD"));
        assert!(reply == Reply::Int(0) || over, "{reply:?}: {release:?}");
    }
    client.call_all(keys.iter().map(|key| ["LOCK.INFO", key]).collect::<Vec<_>>());
    assert_eq!(client.call("DBSIZE"), Reply::Int(0));
}

const OTHER_VERSION: &str = "a lock of encoding 2, by another version of Lockward: this one reads 1";

/// A snapshot of one lock with the number of the next encoding version.
#[track_caller]
fn next_snapshot() -> Vec<u8> {
    let setup = Setup::new().config("rdbchecksum no").config("rdbcompression no");
    let (server, mut client, frame, now) = credulous_with(setup);
    restore(&mut client, "lock", &frame.around(&payload(&[Put::honest(b"A", now * 1_000, now)])));
    assert_eq!(client.call("SAVE"), Reply::ok());
    let mut snapshot = std::fs::read(server.dir().join("dump.rdb")).expect("a snapshot");
    // In an RDB file the key is between the type byte and the module ID. In a DUMP, the module ID directly follows the
    // type byte. So the test searches for the module ID alone.
    let number = &frame.head[1..];
    let at = snapshot.windows(number.len()).position(|window| window == number).expect("the module ID");
    *snapshot.get_mut(at + number.len() - 1).expect("its version") += 1;
    snapshot
}

#[test]
fn a_snapshot_of_the_next_version_is_refused_at_the_start() {
    let snapshot = next_snapshot();
    let mut server = Server::start();
    server.kill();
    std::fs::write(server.dir().join("dump.rdb"), &snapshot).expect("a snapshot");
    let refusal = server.try_to_start_again().expect_err("a refusal");
    assert!(refusal.is_clean() && refusal.log.contains(OTHER_VERSION), "{refusal:?}");
}

/// Plays a primary that sends `snapshot` to a replica.
#[track_caller]
fn follow_one_that_sends(snapshot: &[u8], replica: &Server) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    replica.begin_to_follow(listener.local_addr().expect("an address").port());
    let (mut link, _) = listener.accept().expect("the replica");
    let mut received = Vec::new();
    let mut chunk = [0; 1_024];
    loop {
        let count = link.read(&mut chunk).expect("a request");
        received.extend_from_slice(&chunk[..count]);
        if received.windows(5).any(|word| word == b"PSYNC") {
            break;
        }
        // The replica sends several REPLCONF commands together, and expects a reply to each. The replica
        // sends any other command only after the replies to all earlier commands.
        let asked = received.windows(8).filter(|word| *word == b"REPLCONF").count();
        let ping = received.windows(4).any(|word| word == b"PING");
        let answers = if ping && asked == 0 { "+PONG\r\n".to_owned() } else { "+OK\r\n".repeat(asked) };
        received.clear();
        link.write_all(answers.as_bytes()).expect("an answer");
    }
    let head = format!("+FULLRESYNC {} 1\r\n${}\r\n", "0".repeat(40), snapshot.len());
    link.write_all(head.as_bytes()).expect("an answer");
    link.write_all(snapshot).expect("a snapshot");
    // Reads until the replica closes the connection. The replica closes the connection even if it accepts the snapshot.
    while link.read(&mut chunk).is_ok_and(|count| count > 0) {}
}

#[test]
fn a_replica_refuses_a_full_resync_of_the_next_version() {
    let snapshot = next_snapshot();
    for way in ["disabled", "swapdb"] {
        let mut replica = Setup::new().config(&format!("repl-diskless-load {way}")).start();
        follow_one_that_sends(&snapshot, &replica);
        // A replica that cannot read the snapshot of its primary exits.
        assert!(replica.see_end().code().is_some(), "{}", replica.log());
        let log = replica.log();
        assert!(log.contains(OTHER_VERSION) && !log.contains("BUG REPORT"), "{way}: {log}");
    }
}

/// A payload of a shared lock with so many holders that an algorithm of quadratic time would take minutes.
fn crowd(now: u64, left: u64) -> Vec<u8> {
    crowd_of(80_000, now, left)
}

fn crowd_of(count: u64, now: u64, left: u64) -> Vec<u8> {
    let holder = |number: u64| Put {
        slots: 0,
        left,
        wall_deadline: now + left,
        ..Put::honest(format!("{number:x}").as_bytes(), number + 1, now)
    };
    payload(&(0..count).map(holder).collect::<Vec<_>>())
}

#[test]
fn very_many_expired_leases_do_not_stall_the_server() {
    let (primary, mut client, frame, now) = credulous();
    let replica = Server::start_replica_of(&primary);
    assert_eq!(replica.client().call("DEBUG SET-SKIP-CHECKSUM-VALIDATION 1"), Reply::ok());
    client.acquire("lock A PX 600000");
    let mut b = primary.waiter("lock B BLOCK 0");
    assert_eq!(restore(&mut client, "lock", &frame.around(&crowd(now, 0))), Reply::ok());
    assert_eq!(b.reply().grant().holds, 1);
    replica.see_in_sync_with(&primary);
    assert_eq!(replica.client().call("DEBUG DIGEST"), client.call("DEBUG DIGEST"));
}

#[test]
fn very_many_holders_come_back_from_an_aof_of_commands() {
    let (_server, mut client, frame, now) =
        credulous_with(Setup::new().config("appendonly yes").config("aof-use-rdb-preamble no"));
    assert_eq!(restore(&mut client, "lock", &frame.around(&crowd(now, HOUR_MS))), Reply::ok());
    // A lock that is loaded from AOF commands gets a TTL. Without a TTL before the rewrite, the digests would
    // differ.
    client.call("PEXPIRE lock 3000000");
    let before = client.call("DEBUG DIGEST");
    client.call("BGREWRITEAOF");
    eventually("the AOF has been rewritten", || {
        client.stat("persistence", "aof_rewrite_in_progress") == 0
            && client.stat("persistence", "aof_rewrite_scheduled") == 0
    });
    assert_eq!(client.call("DEBUG LOADAOF"), Reply::ok());
    assert_eq!(client.call("DEBUG DIGEST"), before);
}

/// A copy of a lock with a million holders would block the server for a second.
#[test]
fn a_lock_with_a_million_holders_is_unlinked_without_a_copy() {
    let count = rounds(300_000, 1_000_000);
    for how in ["UNLINK lock", "RENAME lock other"] {
        let (_server, mut client, frame, now) = credulous();
        assert_eq!(restore(&mut client, "lock", &frame.around(&crowd_of(count, now, HOUR_MS))), Reply::ok());
        let used = |reply: &Reply| {
            let text = reply.text();
            let line = text.lines().find_map(|line| line.strip_prefix("used_memory:")).map(str::parse);
            line.expect("used_memory").expect("a number")
        };
        assert_eq!(client.info("lock").unwrap().holding, i64::try_from(count).unwrap());
        let freed = client.stat("memory", "lazyfreed_objects");
        let [before, _, after] = client.transact(["INFO memory", how, "INFO memory"]);
        let (before, after): (i64, i64) = (used(&before), used(&after));
        assert!(after < before + 1_000_000, "{how}: {before} bytes grew to {after}");
        if how == "UNLINK lock" {
            eventually("the lock is freed in the background", || {
                client.stat("memory", "lazyfreed_objects") == freed + 1
                    && client.stat("lock", "lock_held") == 0
            });
            assert_eq!(client.acquire("lock A").holds, 1);
        } else {
            assert_eq!(client.info("other").unwrap().holding, i64::try_from(count).unwrap());
        }
    }
}
