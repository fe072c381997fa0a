//! The cost of other commands beside locks: SET + DEL of plain keys while clients wait for locks.
//!
//! A server with Lockward is compared with a server with an empty module. Any module costs a few per cent, because with
//! a module the event loop locks and unlocks a mutex. The benchmark starts each server several times, because the
//! memory layout differs between two processes of the same program, and the cost depends on the layout.

use crate::clients::Clients;
use crate::pairs::{CONNECTIONS, DEPTH, Pair};
use crate::pipeline::{Batch, Pipeline};
use crate::placement::{Place, be_client_of};
use crate::report::Report;
use crate::request::{LEASE, owner, request};
use crate::results::{Row, Target};
use crate::rounds::Series;
use crate::server::{Loaded, Server};

const STARTS: usize = 6;
const ROUNDS: usize = 10;
/// The number of batches that a connection sends in a round. All connections together send 40,000 pairs.
const TIMES: usize = 100;
/// The number of held locks, and of clients that wait for these locks.
const LOCKS: usize = 100;

const MODULES: [Loaded; 3] = [Loaded::Lockward, Loaded::Empty, Loaded::Nothing];

struct Subject {
    server: Server,
    pipeline: Pipeline,
    batches: Vec<Batch>,
    /// Keeps the waiting or blocked clients connected.
    _waiting: Clients,
}

/// Measures with Lockward, with the empty module, and without a module.
pub fn measure(report: &mut Report) {
    be_client_of(Place::Together);
    let mut costs = MODULES.map(|_| Series::default());
    for _ in 0..STARTS {
        let mut subjects = MODULES.map(Subject::start);
        let of_start: [Series; MODULES.len()] = report.compare(ROUNDS, |which| {
            let Subject { server, pipeline, batches, .. } = &mut subjects[which];
            server.cost(CONNECTIONS * TIMES * DEPTH / 2, || pipeline.run(batches, TIMES))
        });
        costs.iter_mut().zip(of_start).for_each(|(all, of_start)| all.extend(of_start));
    }
    let [lockward, empty, none] = &costs;
    let what = format!("SET + DEL of plain keys beside {LOCKS} locks with waiters");
    let row =
        Row::ratio("plain-keys/empty", &what, lockward, "the same on a server with an empty module", empty);
    report.row(row.target(Target::AtMost(1.03)));
    report.row(Row::ratio(
        "plain-keys/none",
        &what,
        lockward,
        "the same on a server without any module",
        none,
    ));
}

impl Subject {
    /// Starts a server. All servers have the same number of blocked clients and of keys with a TTL, because a TTL costs
    /// the server a second lookup.
    fn start(module: Loaded) -> Self {
        let server = Server::start_with(module, Place::Together, &[]);
        let pipeline = Pipeline::open(&server, CONNECTIONS);
        let batches = Pair::Plain.batches(&server, CONNECTIONS, DEPTH);
        let mut waiting = server.clients(LOCKS);
        let mut control = server.client();
        for number in 0..LOCKS {
            let (key, owner) = (format!("other:lock:{number:04}"), owner(number));
            let list = format!("other:list:{number:04}");
            let (hold, wait) = match module {
                Loaded::Lockward => {
                    ("LOCK.ACQUIRE", request(&["LOCK.ACQUIRE", &key, &owner, "PX", LEASE, "BLOCK", "0"]))
                }
                Loaded::Empty => ("SET", request(&["EMPTY.BLOCK", &list, "0"])),
                Loaded::Nothing => ("SET", request(&["BLPOP", &list, "0"])),
            };
            control.call(&[hold, &key, "holder", "PX", LEASE]);
            waiting.send(number, &wait);
        }
        control.call(&["PING"]);
        Self { server, pipeline, batches, _waiting: waiting }
    }
}
