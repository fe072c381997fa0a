//! Hand-offs beside those of locks without a queue: whoever releases publishes, all who wait hear of it and try again with the
//! script that acquires, and one of them gets the lock.
//!
//! To their advantage, everybody subscribes with RESP3, on the connection that also acquires, and the messages arrive all at once.
//! In both, the former holder wants the lock again.

use crate::clients::Clients;
use crate::handoff::{Costs, Kind, Lines};
use crate::pairs::load;
use crate::placement::{Place, be_client_of};
use crate::report::Report;
use crate::request::{LEASE, owner, request};
use crate::resp::Reply;
use crate::results::{Row, Target, whole};
use crate::rounds::Series;
use crate::server::{Loaded, Server};

const ROUNDS: usize = 25;

/// Tells how long to wait at most where the lock is held by another, and nothing where it has been acquired.
const ACQUIRE: &str = "\
local key, owner = KEYS[1], ARGV[1]
if redis.call('EXISTS', key) == 1 and redis.call('HEXISTS', key, owner) == 0 then return redis.call('PTTL', key) end
redis.call('HINCRBY', key, owner, 1)
redis.call('PEXPIRE', key, ARGV[2])
return nil";
const RELEASE: &str = "\
local key, owner = KEYS[1], ARGV[1]
if redis.call('HEXISTS', key, owner) == 0 then return nil end
if redis.call('HINCRBY', key, owner, -1) == 0 then
    redis.call('DEL', key)
    redis.call('PUBLISH', KEYS[2], 'free')
end
return 1";

const KEY: &str = "hand:hash:0000";
const CHANNEL: &str = "hand:free:0000";

/// A server with clients that all want one lock.
struct Herd {
    server: Server,
    members: Clients,
    holder: usize,
    acquire: String,
    release: String,
}

impl Herd {
    /// Starts a server; one client holds, so many wait.
    fn start(waiters: usize) -> Self {
        let server =
            Server::start_with(Loaded::Nothing, Place::Together, &[&format!("maxclients {}", waiters + 100)]);
        let mut client = server.client();
        let (acquire, release) = (load(&mut client, ACQUIRE), load(&mut client, RELEASE));
        let mut members = server.clients(waiters + 1);
        for who in 0..members.count() {
            members.call(who, &["HELLO", "3"]);
            let subscribed = members.call(who, &["SUBSCRIBE", CHANNEL]);
            assert!(matches!(subscribed, Reply::Push(_)), "{subscribed:?}");
        }
        let mut herd = Self { server, members, holder: 0, acquire, release };
        for who in 0..herd.members.count() {
            herd.try_to_acquire(who);
            let reply = herd.members.reply_to(who);
            assert_eq!(reply == Reply::Null, who == 0, "the first holds it: {reply:?}");
        }
        herd
    }

    fn try_to_acquire(&mut self, who: usize) {
        let owner = owner(who);
        self.members.send(who, &request(&["EVALSHA", &self.acquire, "1", KEY, &owner, LEASE]));
    }

    /// The holder releases, everybody tries, one holds.
    fn hand_over(&mut self) {
        let former = self.holder;
        let mut holder = None;
        let release = request(&["EVALSHA", &self.release, "2", KEY, CHANNEL, &owner(former)]);
        self.members.send(former, &release);
        let mut answered = 0;
        while answered < self.members.count() {
            let arrival = self.members.arrival();
            match (arrival.reply, arrival.who == former) {
                (Reply::Push(_), true) => {} // it tries when its release has been answered
                (Reply::Push(_), false) => self.try_to_acquire(arrival.who),
                (Reply::Number(1), true) => self.try_to_acquire(former),
                (Reply::Number(2..), _) => answered += 1,
                (Reply::Null, _) => {
                    assert_eq!(holder.replace(arrival.who), None, "one holds it");
                    answered += 1;
                }
                (reply, _) => panic!("an attempt comes to {reply:?}"),
            }
        }
        self.holder = holder.expect("one holds it");
    }

    /// The server's CPU for a hand-off, in nanoseconds.
    fn round(&mut self, handoffs: usize) -> f64 {
        let cpu = self.server.cpu();
        let begin = cpu.settled();
        (0..handoffs).for_each(|_| self.hand_over());
        (cpu.settled() - begin).as_nanos() as f64 / handoffs as f64
    }
}

/// Lock and herd, with 50 and 1,000 waiters.
pub fn measure(report: &mut Report) {
    be_client_of(Place::Together);
    for (waiters, handoffs, target) in [(50, 100, 15.0), (1_000, 10, 400.0)] {
        let (mut herd, mut lines) = (Herd::start(waiters), Lines::start(waiters, Place::Together));
        let (mut published, mut lock) = (Series::default(), Costs::default());
        herd.round(handoffs);
        for round in 0..ROUNDS {
            report.progress(round, ROUNDS);
            published.push(herd.round(handoffs));
            lines.round(Kind::Lock, &mut lock);
        }
        let (name, what) = (
            format!("pubsub/{waiters}"),
            format!("hand-off and waiting again, {} waiters", whole(waiters as f64)),
        );
        let row = Row::cheaper(&name, &what, &lock.cpu_with_wait, "pub/sub wake-up + Lua retry", &published);
        report.row(row.target(Target::AtLeast(target)));
    }
}
