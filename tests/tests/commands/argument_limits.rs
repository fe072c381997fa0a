//! Every argument of every command, at and beyond its limits.
//!
//! Each row of [`NUMBERS`] states the reply to every number that an option may have. The tests try all [`values`] for
//! each option, and also in place of a key, an owner or an option, and as an additional argument at the end.

use lockward_tests::{Client, ReplicationStream, Reply, Server};

const NOT_AN_INTEGER: &str = "ERR value is not an integer or out of range";
const SYNTAX: &str = "ERR syntax error";
const OWNER: &str = "ERR owner must be 1 to 1024 bytes";
const HOLDS: &str = "ERR HOLDS is out of range";
const SLOTS: &str = "ERR SLOTS must be 1 to 1000000";
const WEIGHT: &str = "ERR WEIGHT must be 1 to the number of slots";
const KEEP: &str = "ERR KEEP must be 1 to 60000 ms";
const TOKEN: &str = "ERR TOKEN is out of range";
const COUNT: &str = "ERR count is out of range";
const TWO_HOLDS: &str = "HOLDS the owner has 2 holds";
const OTHER_MODE: &str = "LIMIT the owner has SLOTS 1 WEIGHT 1: release first, or ask as another owner";
const OTHER_TOKEN: &str = "NOTHELD the lock is held by this owner with token ";
const NO_LIMIT: &str = "ERR timeout is not an integer or out of range";
const NEGATIVE_LIMIT: &str = "ERR timeout is negative";
const LIMIT: &str = "ERR timeout is out of range";
const ACQUIRE_LEASE: &str = "ERR invalid expire time in 'lock.acquire' command";
const ACQUIRE_MAX: &str =
    "ERR invalid expire time in 'lock.acquire' command: at most 315360000000 (lock.max-lease)";
const RENEW_LEASE: &str = "ERR invalid expire time in 'lock.renew' command";
const RENEW_MAX: &str =
    "ERR invalid expire time in 'lock.renew' command: at most 315360000000 (lock.max-lease)";
/// No error.
const DONE: &str = "";

const LEAST: i64 = i64::MIN;
const OVER_U32: i64 = 1 << 32;
const OVER_TOKENS: i64 = 1 << 53;
/// `OVER_MAX_MS` and `OVER_MAX_S` are a millisecond and a second more than ten years. The number of milliseconds in
/// `OVER_ALL_S` seconds does not fit into 64 bits.
const OVER_MAX_MS: i64 = 315_360_000_001;
const OVER_MAX_S: i64 = 315_360_001;
const OVER_ALL_S: i64 = 18_446_744_073_709_552;
const OVER_LIMITS: i64 = 31_536_000_000_001;
const OVER_KEEP: i64 = 60_001;

/// The words of a command before the value of an option, the error for a value that is not a number, and the ranges of
/// numbers. Each range has its smallest number, and the reply to all numbers of the range: an error or [`DONE`].
type Row = (&'static str, &'static str, &'static [(i64, &'static str)]);

/// The replies while A holds `lock` twice.
const NUMBERS: [Row; 18] = [
    (
        "LOCK.ACQUIRE lock A PX",
        NOT_AN_INTEGER,
        &[(LEAST, ACQUIRE_LEASE), (1, DONE), (OVER_MAX_MS, ACQUIRE_MAX)],
    ),
    (
        "LOCK.ACQUIRE lock A EX",
        NOT_AN_INTEGER,
        &[(LEAST, ACQUIRE_LEASE), (1, DONE), (OVER_MAX_S, ACQUIRE_MAX), (OVER_ALL_S, ACQUIRE_LEASE)],
    ),
    ("LOCK.ACQUIRE lock A BLOCK", NO_LIMIT, &[(LEAST, NEGATIVE_LIMIT), (0, DONE), (OVER_LIMITS, LIMIT)]),
    (
        "LOCK.ACQUIRE lock A HOLDS",
        NOT_AN_INTEGER,
        &[(LEAST, HOLDS), (1, TWO_HOLDS), (2, DONE), (4, TWO_HOLDS), (OVER_U32, HOLDS)],
    ),
    ("LOCK.ACQUIRE lock A SLOTS", NOT_AN_INTEGER, &[(LEAST, SLOTS), (1, DONE), (1_000_001, SLOTS)]),
    (
        "LOCK.ACQUIRE lock A SLOTS 4 WEIGHT",
        NOT_AN_INTEGER,
        &[(LEAST, WEIGHT), (1, DONE), (2, OTHER_MODE), (5, WEIGHT)],
    ),
    (
        "LOCK.ACQUIRE lock A BLOCK 1 HOLDS 2 KEEP",
        NOT_AN_INTEGER,
        &[(LEAST, KEEP), (1, DONE), (OVER_KEEP, KEEP)],
    ),
    (
        "LOCK.RELEASE lock A HOLDS",
        NOT_AN_INTEGER,
        &[(LEAST, HOLDS), (0, TWO_HOLDS), (1, DONE), (3, TWO_HOLDS), (OVER_U32, HOLDS)],
    ),
    ("LOCK.RELEASE lock A TOKEN", NOT_AN_INTEGER, &[(LEAST, TOKEN), (1, OTHER_TOKEN), (OVER_TOKENS, TOKEN)]),
    ("LOCK.RENEW lock A PX", NOT_AN_INTEGER, &[(LEAST, RENEW_LEASE), (1, DONE), (OVER_MAX_MS, RENEW_MAX)]),
    (
        "LOCK.RENEW lock A EX",
        NOT_AN_INTEGER,
        &[(LEAST, RENEW_LEASE), (1, DONE), (OVER_MAX_S, RENEW_MAX), (OVER_ALL_S, RENEW_LEASE)],
    ),
    ("LOCK.RENEW lock A TOKEN", NOT_AN_INTEGER, &[(LEAST, TOKEN), (1, OTHER_TOKEN), (OVER_TOKENS, TOKEN)]),
    ("LOCK.RENEW lock A HOLDS", NOT_AN_INTEGER, &[(LEAST, HOLDS), (1, DONE), (OVER_U32, HOLDS)]),
    ("LOCK.RENEW lock A SLOTS", NOT_AN_INTEGER, &[(LEAST, SLOTS), (1, DONE), (1_000_001, SLOTS)]),
    (
        "LOCK.RENEW lock A SLOTS 4 WEIGHT",
        NOT_AN_INTEGER,
        &[(LEAST, WEIGHT), (1, DONE), (2, OTHER_MODE), (5, WEIGHT)],
    ),
    ("LOCK.INFO lock HOLDERS", NOT_AN_INTEGER, &[(LEAST, COUNT), (0, DONE)]),
    ("LOCK.INFO lock WAITERS", NOT_AN_INTEGER, &[(LEAST, COUNT), (0, DONE)]),
    ("LOCK.TOP COUNT", NOT_AN_INTEGER, &[(LEAST, COUNT), (1, DONE)]),
];

/// Texts that are not numbers for Redis, although other programs may accept some of them.
#[rustfmt::skip]
const NO_NUMBERS: [&str; 66] = [
    "", " ", "  ", "\0", "\n", "\r\n", "\t1", " 1", "1 ", "1\n", "1\r\n", "1\0", "\x001", "+1", "+", "-", "--1", "- 1", "-0",
    "+0", "00", "01", "-01", "007", "1.", "1.0", "1.5", ".5", "1e3", "1E3", "1e", "0x10", "0X10", "x10", "0b1", "0o7", "1_000",
    "1,000", "1'000", "1 000", "1ms", "1s", "1-", "1-2", "1;2", "inf", "-inf", "nan", "null", "true", "%d", "%s%n", "*", "$1",
    "١", "１", "²", "Ⅷ", "\u{feff}1", "\u{2212}1", "9223372036854775808", "-9223372036854775809", "18446744073709551615",
    "18446744073709551616", "18446744073709551617", "340282366920938463463374607431768211456",
];

/// Numbers around every limit.
#[rustfmt::skip]
const EDGES: [i64; 33] = [
    i64::MIN, i64::MIN + 1, -OVER_TOKENS, -OVER_U32, -2, -1, 0, 1, 2, 3, 4, 5, OVER_KEEP - 1, OVER_KEEP, 999_999, 1_000_000, 1_000_001, OVER_MAX_S - 1,
    OVER_MAX_S, (1 << 31) - 1, 1 << 31, OVER_U32 - 1, OVER_U32, OVER_U32 + 1, OVER_MAX_MS - 1, OVER_MAX_MS, OVER_LIMITS - 1,
    OVER_LIMITS, OVER_TOKENS - 1, OVER_TOKENS, i64::MAX / 1_000 + 1, OVER_ALL_S, i64::MAX,
];

/// All values that the tests try, each with its number if the value is a number.
fn values() -> Vec<(Vec<u8>, Option<i64>)> {
    let digits = |digit: &str, count: usize| digit.repeat(count).into_bytes();
    let long = [
        digits("0", 400),
        digits("9", 400),
        [b"-".to_vec(), digits("9", 400)].concat(),
        [b"1".to_vec(), digits("\0", 20)].concat(),
        digits("1", 1_000_000),
        digits("x", 1_000_000),
        vec![0xff],
        vec![0xc0, 0x80],
        (0..=255).collect(),
    ];
    let texts = NO_NUMBERS.into_iter().map(|text| text.as_bytes().to_vec()).chain(long);
    let numbers = EDGES.into_iter().map(|number| (number.to_string().into_bytes(), Some(number)));
    texts.map(|text| (text, None)).chain(numbers).collect()
}

fn words(command: &str) -> Vec<Vec<u8>> {
    command.split(' ').map(|word| word.as_bytes().to_vec()).collect()
}

fn shown(command: &[Vec<u8>]) -> String {
    let cut = |word: &Vec<u8>| word.escape_ascii().to_string().chars().take(60).collect::<String>();
    command.iter().map(cut).collect::<Vec<_>>().join(" ")
}

/// A server on which A holds `lock` twice, with the server's replication stream.
struct Stage {
    client: Client,
    stream: ReplicationStream,
    refused: usize,
    done: usize,
    _server: Server,
}

impl Stage {
    #[track_caller]
    fn set() -> Self {
        let server = Server::start();
        let mut client = server.client();
        client.acquire("lock A PX 600000");
        client.acquire("lock A");
        let stream = ReplicationStream::attach(&server);
        Self { client, stream, refused: 0, done: 0, _server: server }
    }

    /// Checks that the reply is this error and that the command has changed nothing.
    #[track_caller]
    fn refused(&mut self, command: &[Vec<u8>], error: &str) {
        let digest = || vec![b"DEBUG".to_vec(), b"DIGEST".to_vec()];
        let replies = self.client.call_all([digest(), command.to_vec(), digest(), words("PTTL lock")]);
        let what = shown(command);
        let text =
            if let Reply::Error(text) = &replies[1] { text } else { panic!("{what}: {:?}", replies[1]) };
        // If the expected error ends with a space, a token follows in the reply. The token differs from run to run, so
        // the test does not compare the token.
        let right = if error.ends_with(' ') { text.starts_with(error) } else { text == error };
        assert!(right, "{what}: {text:?} instead of {error:?}");
        assert_eq!(replies[0], replies[2], "{what} has changed something");
        assert!(replies[3].int() > 400_000, "{what} has changed the lease");
        self.refused += 1;
    }

    /// Checks that the command succeeds, and restores the initial state.
    #[track_caller]
    fn done(&mut self, command: &[Vec<u8>]) {
        let reply = self.client.call(command);
        assert!(!matches!(reply, Reply::Error(_)), "{}: {reply:?}", shown(command));
        self.client.call_all(["FLUSHALL", "LOCK.ACQUIRE lock A PX 600000", "LOCK.ACQUIRE lock A"]);
        self.done += 1;
    }

    /// Checks that no refused command was replicated.
    #[track_caller]
    fn see_nothing_sent(&mut self) {
        assert_eq!(self.stream.commands(&mut self.client), Vec::<Vec<Vec<u8>>>::new());
        println!("{} refused, {} done", self.refused, self.done);
    }
}

#[test]
fn every_number_is_accepted_or_refused_as_the_table_says() {
    let mut stage = Stage::set();
    let mut fine = Vec::new();
    for (command, no_number, ranges) in NUMBERS {
        for (value, number) in values() {
            let command = [words(command), vec![value]].concat();
            let range =
                number.map(|number| ranges.iter().rfind(|(from, _)| *from <= number).expect("a range").1);
            match range.unwrap_or(no_number) {
                DONE => fine.push(command),
                error => stage.refused(&command, error),
            }
        }
    }
    stage.see_nothing_sent();
    fine.iter().for_each(|command| stage.done(command));
    println!("{} done", stage.done);
}

#[test]
fn unknown_repeated_and_incomplete_options_are_refused() {
    const OPTIONS: [&str; 16] = [
        "PX 1000",
        "EX 1",
        "BLOCK 1",
        "KEEP 1",
        "HOLDS 3",
        "SLOTS 1",
        "SHARED",
        "WEIGHT 1",
        "ALL",
        "TOKEN 1",
        "HOLDERS 1",
        "WAITERS 1",
        "COUNT 1",
        "NX",
        "KEEPTTL",
        "A",
    ];
    /// A command, its options, and the groups of options that exclude each other.
    type Allowed = (&'static str, &'static [&'static str], &'static [&'static [&'static str]]);
    let commands: [Allowed; 5] = [
        (
            "LOCK.ACQUIRE lock A",
            &["PX 1000", "EX 1", "BLOCK 1", "KEEP 1", "HOLDS 3", "SLOTS 1", "SHARED", "WEIGHT 1"],
            &[&["PX 1000", "EX 1"], &["SLOTS 1", "SHARED"]],
        ),
        ("LOCK.RELEASE lock A", &["HOLDS 3", "ALL", "TOKEN 1"], &[&["HOLDS 3", "ALL"]]),
        (
            "LOCK.RENEW lock A",
            &["PX 1000", "EX 1", "TOKEN 1", "HOLDS 3", "SLOTS 1", "SHARED", "WEIGHT 1"],
            &[&["PX 1000", "EX 1"], &["SLOTS 1", "SHARED"]],
        ),
        ("LOCK.INFO lock", &["WAITERS 1", "HOLDERS 1"], &[]),
        ("LOCK.TOP", &["COUNT 1"], &[]),
    ];
    let mut stage = Stage::set();
    for (command, allowed, exclusive) in commands {
        let mut refuse = |more: String| stage.refused(&words(&format!("{command} {more}")), SYNTAX);
        for option in OPTIONS {
            let name = option.split(' ').next().unwrap_or_default();
            if !allowed.contains(&option) {
                refuse(option.to_owned());
                refuse(name.to_owned());
                allowed.iter().for_each(|before| refuse(format!("{before} {option}")));
                continue;
            }
            // The server refuses the same option twice: side by side, in upper and lower case, and with another option
            // in between.
            let in_between = allowed
                .iter()
                .find(|other| **other != option && !exclusive.iter().any(|both| both.contains(&option)));
            refuse(format!("{option} {option}"));
            refuse(format!("{option} {}", option.to_lowercase()));
            refuse(format!("{option} {} {option}", in_between.unwrap_or(&option)));
            if name != option {
                refuse(name.to_owned());
                refuse(format!("{option} {name}"));
                refuse(format!("{option} 1"));
            }
            for both in exclusive.iter().filter(|both| both.contains(&option)) {
                for other in both.iter().filter(|other| **other != option) {
                    refuse(format!("{option} {other}"));
                }
            }
        }
        for (value, _) in values() {
            stage.refused(&[words(command), vec![value.clone()]].concat(), SYNTAX);
            stage.refused(&[words(command), words(allowed[0]), vec![value.clone()]].concat(), SYNTAX);
            stage.refused(&[words(command), vec![value, b"1".to_vec()]].concat(), SYNTAX);
        }
    }
    stage.see_nothing_sent();
}

#[test]
fn keys_and_owners_are_any_bytes_within_their_length_limits() {
    let mut stage = Stage::set();
    let options = ["PX", "EX", "BLOCK", "HOLDS", "SLOTS", "SHARED", "WEIGHT", "KEEP", "ALL", "TOKEN", "px"]
        .map(|name| name.as_bytes().to_vec());
    let names: Vec<Vec<u8>> = values().into_iter().map(|(value, _)| value).chain(options).collect();
    for owner in names.iter().chain(&[vec![b'A'; 1_024], vec![b'A'; 1_025]]) {
        for command in ["LOCK.ACQUIRE", "LOCK.RELEASE", "LOCK.RENEW"] {
            let command = [words(command), vec![b"free".to_vec(), owner.clone()]].concat();
            match command[0].as_slice() {
                _ if owner.is_empty() || owner.len() > 1_024 => stage.refused(&command, OWNER),
                b"LOCK.ACQUIRE" => {}
                _ => stage.refused(&command, "NOTHELD the lock is free"),
            }
        }
    }
    for key in &names {
        for command in ["LOCK.RELEASE", "LOCK.RENEW"] {
            let command = [words(command), vec![key.clone(), b"A".to_vec()]].concat();
            stage.refused(&command, "NOTHELD the lock is free");
        }
        assert_eq!(stage.client.call([b"LOCK.INFO", key.as_slice()]), Reply::NullArray);
    }
    stage.see_nothing_sent();
    for name in names.iter().filter(|name| (1..=1_024).contains(&name.len())) {
        stage.done(&[words("LOCK.ACQUIRE"), vec![name.clone(), name.clone()]].concat());
        // `name` may also be the name of an option. As the second argument, such a name is an owner.
        stage.done(
            &[words("LOCK.ACQUIRE"), vec![name.clone(), name.clone()], words("PX 1000 HOLDS 1")].concat(),
        );
    }
}

#[test]
fn an_argument_of_the_largest_size_is_refused_without_a_copy() {
    const LONGEST: usize = 512 * 1024 * 1024;
    let size = lockward_tests::rounds(32 * 1024 * 1024, LONGEST);
    let mut stage = Stage::set();
    let value = vec![b'1'; size];
    // The server itself copies each request. These two calls raise the memory peak by the size of the server's copies,
    // so that the peak rises further only if the module makes a copy too.
    stage.client.call([b"EXISTS", value.as_slice()]);
    stage.client.call([b"EXISTS", value.as_slice()]);
    let before = stage.client.stat("memory", "used_memory_peak");
    for (command, error) in [
        ("LOCK.ACQUIRE lock", OWNER),
        ("LOCK.ACQUIRE lock A", SYNTAX),
        ("LOCK.RENEW lock A PX", NOT_AN_INTEGER),
    ] {
        stage.refused(&[words(command), vec![value.clone()]].concat(), error);
    }
    for guard in ["LOCK.GUARD lock 5", "LOCK.GUARD lock 5 XGROUP"] {
        let call = [words("COMMAND GETKEYS"), words(guard), vec![value.clone()]].concat();
        assert_eq!(stage.client.call(call).items().len(), 1, "{guard}");
    }
    let more = stage.client.stat("memory", "used_memory_peak") - before;
    println!(
        "an argument of {size} bytes: {before} bytes for EXISTS at most, and {more} more for the lock commands"
    );
    assert!(more < i64::try_from(size).unwrap() / 2, "the module has copied the argument: {more} bytes more");
    stage.see_nothing_sent();
}
