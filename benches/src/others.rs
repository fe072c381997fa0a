//! The cost for other commands: SET + DEL of plain keys while clients wait for locks.
//!
//! They are compared with a server with a module that does nothing, because any module costs a few per cent: with a module the
//! event loop takes a mutex. Each server is started several times, because two processes of the same program differ by the layout
//! of their memory.

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
/// Batches of a connection in a round: 40,000 pairs.
const TIMES: usize = 100;
/// The number of held locks, and of clients that wait for them.
const LOCKS: usize = 100;

const MODULES: [Loaded; 3] = [Loaded::Lockward, Loaded::Empty, Loaded::Nothing];

struct Subject {
    server: Server,
    pipeline: Pipeline,
    batches: Vec<Batch>,
}

/// Measures with Lockward, with the empty module, and without a module.
pub fn measure(report: &mut Report) {
    be_client_of(Place::Together);
    let mut costs = MODULES.map(|_| Series::default());
    for start in 0..STARTS {
        let mut subjects = MODULES.map(|module| {
            let server = Server::start_with(module, Place::Together, &[]);
            let mut pipeline = Pipeline::open(&server, CONNECTIONS);
            let batches = Pair::Plain.batches(&server, CONNECTIONS, DEPTH);
            pipeline.run(&batches, TIMES);
            Subject { server, pipeline, batches }
        });
        // All servers have the same number of keys with a TTL and of blocked clients. A TTL costs the server a second lookup.
        let _waiting: Vec<_> = subjects
            .iter()
            .zip(MODULES)
            .map(|(subject, module)| {
                let mut clients = subject.server.clients(LOCKS);
                let mut control = subject.server.client();
                for number in 0..LOCKS {
                    let (key, owner) = (format!("other:lock:{number:04}"), owner(number));
                    let wait = match module {
                        Loaded::Lockward => {
                            control.call(&["LOCK.ACQUIRE", &key, "holder", "PX", LEASE]);
                            request(&["LOCK.ACQUIRE", &key, &owner, "PX", LEASE, "BLOCK", "0"])
                        }
                        Loaded::Empty | Loaded::Nothing => {
                            control.call(&["SET", &key, "holder", "PX", LEASE]);
                            let blocks = if module == Loaded::Empty { "EMPTY.BLOCK" } else { "BLPOP" };
                            request(&[blocks, &format!("other:list:{number:04}"), "0"])
                        }
                    };
                    clients.send(number, &wait);
                }
                control.call(&["PING"]);
                clients
            })
            .collect();
        for round in 0..ROUNDS {
            report.progress(start * ROUNDS + round, STARTS * ROUNDS);
            for turn in 0..MODULES.len() {
                let which = (start + round + turn) % MODULES.len();
                let Subject { server, pipeline, batches } = &mut subjects[which];
                let cpu = server.cpu();
                let begin = cpu.settled();
                pipeline.run(batches, TIMES);
                let pairs = (CONNECTIONS * TIMES * DEPTH / 2) as f64;
                costs[which].push((cpu.settled() - begin).as_nanos() as f64 / pairs);
            }
        }
    }
    let [lockward, empty, none] = &costs;
    let what = format!("SET + DEL of plain keys beside {LOCKS} locks with waiters");
    let row = Row::ratio("others/empty", &what, lockward, "a server with an empty module", empty);
    report.row(row.target(Target::AtMost(1.03)));
    report.row(Row::ratio("others/none", &what, lockward, "a server without any module", none));
}
