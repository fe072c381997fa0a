//! The cost of LOCK.GUARD: a guarded SET, compared with a SET alone, and with a script that compares the token with a
//! string and then writes.

use crate::pairs::load;
use crate::pipeline::{Batch, Expected, Part, Pipeline};
use crate::placement::{Place, be_client_of};
use crate::report::Report;
use crate::request::{LEASE, request};
use crate::results::{Row, Target};
use crate::rounds::Series;
use crate::server::Server;

/// The number of connections, and of commands in flight on each connection.
const LOADS: [(usize, usize); 2] = [(1, 1), (50, 16)];
const ROUNDS: usize = 23;
/// The number of commands in a round.
const COMMANDS: usize = 16_000;
/// The largest allowed ratio of a guarded SET to a SET. One connection sends the commands one by one, as clients
/// usually do.
const ALLOWED: f64 = 1.6;

const CHECK: &str = "\
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return redis.error_reply('FENCED') end
return redis.call('SET', KEYS[2], ARGV[2])";

/// Measures commands sent one by one, and pipelined.
pub fn measure(report: &mut Report) {
    be_client_of(Place::Together);
    for (connections, depth) in LOADS {
        let (how, name) = if depth == 1 { ("one by one", "alone") } else { ("pipelined", "pipelined") };
        let [guarded, plain, scripted] = costs(report, connections, depth);
        let what = format!("SET through LOCK.GUARD, {how}");
        let row = Row::ratio(&format!("guarded/set-{name}"), &what, &guarded, "SET", &plain);
        report.row(if depth == 1 { row.target(Target::AtMost(ALLOWED)) } else { row });
        let row = Row::cheaper(
            &format!("guarded/lua-{name}"),
            &what,
            &guarded,
            "a Lua script that checks the token",
            &scripted,
        );
        report.row(row.target(Target::AtLeast(1.0)));
    }
}

/// The server's CPU for a guarded SET, for a SET and for the script, in nanoseconds.
fn costs(report: &mut Report, connections: usize, depth: usize) -> [Series; 3] {
    let server = Server::start(&[]);
    let mut client = server.client();
    let grant = client.call(&["LOCK.ACQUIRE", "lock", "owner", "PX", LEASE]);
    let token = grant.items()[0].int().to_string();
    client.call(&["SET", "token", &token]);
    let script = load(&mut client, CHECK);
    let commands: [&[&str]; 3] = [
        &["LOCK.GUARD", "lock", &token, "SET", "data", "value"],
        &["SET", "data", "value"],
        &["EVALSHA", &script, "2", "token", "data", &token, "value"],
    ];
    let batches = commands.map(|command| {
        let part = Part { requests: request(command).repeat(depth), expected: vec![Expected::Status; depth] };
        vec![Batch(vec![part]); connections]
    });
    let mut pipeline = Pipeline::open(&server, connections);
    let times = COMMANDS / (connections * depth);
    report.compare(ROUNDS, |which| {
        server.cost(connections * depth * times, || pipeline.run(&batches[which], times))
    })
}
