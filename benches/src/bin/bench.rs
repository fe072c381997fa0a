//! Measures what Lockward costs on a real server, compared with the locks that it replaces: `make bench`.

use lockward_bench::suite::{Stage, Suite};
use lockward_bench::{
    docs, expiry, guarded, handoff, load, memory, modes, pairs, plain_keys, pubsub, stalls, throughput,
};
use std::process::ExitCode;

const STAGES: [Stage; 13] = [
    ("pairs", "acquire + release without AOF or replica", pairs::plain),
    ("aof", "acquire + release with an AOF", pairs::aof),
    ("replica", "acquire + release with a replica", pairs::replica),
    ("guarded", "a guarded SET, compared with a SET and with the check in Lua", guarded::measure),
    ("handoff", "hand-offs, compared with an LPUSH that wakes a client in BLPOP", handoff::measure),
    ("pubsub", "hand-offs, compared with pub/sub wake-up and Lua", pubsub::measure),
    ("expiry", "expired leases among many keys with a TTL", expiry::measure),
    ("plain-keys", "plain keys beside locks with waiters", plain_keys::measure),
    ("memory", "memory of locks and of waiting clients", memory::measure),
    ("load", "loading a million locks", load::measure),
    (modes::STAGE, "readers and slots: many holders compared with few", modes::measure),
    ("throughput", "pairs a second by pipeline depth", throughput::measure),
    (stalls::STAGE, "how long other clients wait at worst", stalls::measure),
];

fn main() -> ExitCode {
    let suite = Suite {
        about: "Measures what Lockward costs the server, compared with the locks that it replaces",
        stages: &STAGES,
        cases: stalls::cases().map(|case| format!("{}/{case}", stalls::STAGE)).collect(),
        into: "target/bench",
        write_docs: docs::write,
    };
    suite.main()
}
