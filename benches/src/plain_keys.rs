//! The cost of other commands beside locks: SET + DEL of plain keys while clients wait for locks.
//!
//! A server with Lockward is compared with a server without a module. The benchmark starts each server several times,
//! because the memory layout differs between two processes of the same program, and the cost depends on the layout.

use crate::clients::Clients;
use crate::pairs::{CONNECTIONS, DEPTH, Pair};
use crate::pipeline::{Batch, Pipeline};
use crate::placement::{Place, be_client_of};
use crate::report::Report;
use crate::request::{LEASE, owner, request};
use crate::results::{Row, Series};
use crate::server::{Loaded, cost, setup};
use lockward_tests::Server;

const STARTS: usize = 6;
const ROUNDS: usize = 10;
/// The number of batches that a connection sends in a round. All connections together send 40,000 pairs.
const TIMES: usize = 100;
/// The number of held locks, and of clients that wait for these locks.
const LOCKS: usize = 100;

struct Subject {
    server: Server,
    pipeline: Pipeline,
    batches: Vec<Batch>,
    /// Keeps the waiting clients connected.
    _waiting: Clients,
}

pub fn measure(report: &mut Report) {
    be_client_of(Place::Together);
    let [mut lockward, mut none] = <[Series; 2]>::default();
    for _ in 0..STARTS {
        let mut subjects = [Loaded::Lockward, Loaded::Nothing].map(Subject::start);
        let [with, without] = report.compare(ROUNDS, |which| {
            let Subject { server, pipeline, batches, .. } = &mut subjects[which];
            cost(server.pid(), CONNECTIONS * TIMES * DEPTH / 2, || pipeline.run(batches, TIMES))
        });
        lockward.extend(with);
        none.extend(without);
    }
    let what = format!("SET + DEL of plain keys beside {LOCKS} locks with waiters");
    let against = "the same on a server without any module";
    report.row(Row::ratio("plain-keys/none", &what, &lockward, against, &none));
}

impl Subject {
    /// Starts a server. Both servers have the same number of blocked clients and of keys with a TTL, because a TTL
    /// costs the server a second lookup.
    fn start(module: Loaded) -> Self {
        let server = setup(module, Place::Together, &[]).start();
        let pipeline = Pipeline::open(&server, CONNECTIONS);
        let batches = Pair::Plain.batches(&server, CONNECTIONS, DEPTH);
        let mut waiting = Clients::open(server.port(), LOCKS);
        let mut control = server.client();
        for number in 0..LOCKS {
            let (key, owner) = (format!("other:lock:{number:04}"), owner(number));
            let (hold, wait) = match module {
                Loaded::Lockward => {
                    ("LOCK.ACQUIRE", request(&["LOCK.ACQUIRE", &key, &owner, "PX", LEASE, "BLOCK", "0"]))
                }
                Loaded::Empty | Loaded::Nothing => {
                    ("SET", request(&["BLPOP", &format!("other:list:{number:04}"), "0"]))
                }
            };
            control.call([hold, &key, "holder", "PX", LEASE]);
            waiting.send(number, &wait);
        }
        control.see_blocked(LOCKS as i64);
        Self { server, pipeline, batches, _waiting: waiting }
    }
}
