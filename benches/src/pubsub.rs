//! Hand-offs, compared with pub/sub locks: a release publishes a message, every waiter receives the message and runs
//! the script that acquires, and one waiter gets the lock. The locks are the hash locks of the stage "pairs".
//!
//! Two choices favour the pub/sub locks: a client subscribes with RESP3 on the connection that also acquires, and all
//! messages arrive at once. With both kinds of lock, the former holder waits again.

use crate::clients::Clients;
use crate::pairs::{HASH_ACQUIRE, HASH_RELEASE};
use crate::placement::{Place, be_client_of};
use crate::queues::{Kind, Queues};
use crate::report::{Report, compare};
use crate::request::{LEASE, load, owner, request};
use crate::results::{Row, whole};
use crate::server::{Loaded, cost, setup};
use lockward_tests::{Reply, Server};

const ROUNDS: usize = 25;

const KEY: &str = "hand:hash:0000";
const CHANNEL: &str = "hand:free:0000";

struct Herd {
    server: Server,
    members: Clients,
    holder: usize,
    acquire: String,
    release: String,
}

impl Herd {
    /// Starts a server. One client holds the lock, and `waiters` clients wait.
    fn start(waiters: usize) -> Self {
        let maxclients = format!("maxclients {}", waiters + 100);
        let server = setup(Loaded::Nothing, Place::Together, &[&maxclients]).start();
        let mut client = server.client();
        let (acquire, release) = (load(&mut client, HASH_ACQUIRE), load(&mut client, HASH_RELEASE));
        let mut members = Clients::open(server.port(), waiters + 1);
        for who in 0..members.count() {
            members.call(who, &["HELLO", "3"]);
            let subscribed = members.call(who, &["SUBSCRIBE", CHANNEL]);
            assert!(matches!(subscribed, Reply::Push(_)), "{subscribed:?}");
        }
        let mut herd = Self { server, members, holder: 0, acquire, release };
        for who in 0..herd.members.count() {
            herd.try_to_acquire(who);
            let reply = herd.members.reply_to(who);
            assert_eq!(reply == Reply::Int(1), who == 0, "the first client holds the lock: {reply:?}");
        }
        herd
    }

    fn try_to_acquire(&mut self, who: usize) {
        let owner = owner(who);
        self.members.send(who, &request(&["EVALSHA", &self.acquire, "1", KEY, &owner, LEASE]));
    }

    /// The holder releases, all clients try to acquire, and one client becomes the holder.
    fn hand_over(&mut self) {
        let former = self.holder;
        let mut holder = None;
        let release = request(&["EVALSHA", &self.release, "1", KEY, &owner(former)]);
        self.members.send(former, &[release, request(&["PUBLISH", CHANNEL, "free"])].concat());
        let mut releasing = 2; // the former holder tries after the replies to these two commands
        let mut answered = 0;
        while answered < self.members.count() {
            let arrival = self.members.arrival();
            match (arrival.reply, arrival.who == former) {
                (Reply::Push(_), true) => {}
                (Reply::Push(_), false) => self.try_to_acquire(arrival.who),
                (Reply::Int(_), true) if releasing > 0 => {
                    releasing -= 1;
                    if releasing == 0 {
                        self.try_to_acquire(former);
                    }
                }
                (Reply::Int(0), _) => answered += 1,
                (Reply::Int(1), _) => {
                    assert_eq!(holder.replace(arrival.who), None, "two clients hold the lock");
                    answered += 1;
                }
                (reply, _) => panic!("the reply to an attempt is {reply:?}"),
            }
        }
        self.holder = holder.expect("a holder");
    }
}

pub fn measure(report: &mut Report) {
    be_client_of(Place::Together);
    for (waiters, handoffs, target) in [(50, 100, 1.0 / 15.0), (1_000, 10, 1.0 / 400.0)] {
        let mut herd = Herd::start(waiters);
        let mut queues = Queues::waiting(Kind::Lock, Place::Together, waiters);
        let [published, lock] = compare(ROUNDS, |which| match which {
            0 => {
                let pid = herd.server.pid();
                cost(pid, handoffs, || (0..handoffs).for_each(|_| herd.hand_over()))
            }
            _ => queues.round_of_holders(),
        });
        let what = format!("hand-off and waiting again, {} waiters", whole(waiters as f64));
        let against = "a lock in Lua that wakes all its waiters by pub/sub";
        report.row(Row::ratio(&what, &lock, against, &published).at_most(target));
    }
}
