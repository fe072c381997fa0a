//! The cost of LOCK.GUARD: a guarded SET, compared with a SET alone, and with a script that compares the token with a
//! string and then writes.

use crate::pipeline::{Batch, Expected, Pipeline};
use crate::placement::{Place, be_client_of};
use crate::report::{Report, compare};
use crate::request::{LEASE, load, request};
use crate::results::{Row, Series, Target};
use crate::server::{cost, start};

/// How the commands are sent: a description, the number of connections, and the number of commands in flight on each
/// connection. Clients usually send commands one by one.
const LOADS: [(&str, usize, usize); 2] = [("one by one", 1, 1), ("pipelined", 50, 16)];
const ROUNDS: usize = 23;
/// The number of commands in a round.
const COMMANDS: usize = 16_000;
/// The largest allowed ratio of a guarded SET to a SET, if the commands are sent one by one.
const ALLOWED: f64 = 1.6;

pub const CHECK: &str = "\
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return redis.error_reply('FENCED') end
return redis.call('SET', KEYS[2], ARGV[2])";

pub fn measure(report: &mut Report) {
    be_client_of(Place::Together);
    for (how, connections, depth) in LOADS {
        let [guarded, plain, scripted] = costs(connections, depth);
        let what = format!("SET through LOCK.GUARD, {how}");
        let row = Row::ratio(&format!("guarded/set {how}"), &what, &guarded, "SET", &plain);
        report.row(if depth == 1 { row.target(Target::AtMost(ALLOWED)) } else { row });
        let against = "a Lua script that checks the token";
        let row = Row::cheaper(&format!("guarded/lua {how}"), &what, &guarded, against, &scripted);
        report.row(row.target(Target::AtLeast(1.0)));
    }
}

/// The server's CPU for a guarded SET, for a SET and for the script, in nanoseconds.
fn costs(connections: usize, depth: usize) -> [Series; 3] {
    let server = start(&[]);
    let mut client = server.client();
    let token = client.call(["LOCK.ACQUIRE", "lock", "owner", "PX", LEASE]).grant().token.to_string();
    client.call(["SET", "token", &token]);
    let script = load(&mut client, CHECK);
    let commands: [&[&str]; 3] = [
        &["LOCK.GUARD", "lock", &token, "SET", "data", "value"],
        &["SET", "data", "value"],
        &["EVALSHA", &script, "2", "token", "data", &token, "value"],
    ];
    let batches = commands.map(|command| {
        let commands = vec![(request(command), Expected::Status); depth];
        vec![Batch::of(&commands, depth); connections]
    });
    let mut pipeline = Pipeline::open(&server, connections);
    let times = COMMANDS / (connections * depth);
    compare(ROUNDS, |which| {
        cost(server.pid(), connections * depth * times, || pipeline.run(&batches[which], times))
    })
}
