//! Waits that end at about the time at which the waiter is granted the lock. The next waiter must be served, whether
//! the wait ends before or after the grant.
//!
//! In each race A holds a lock, B waits for the lock, and C waits behind B. The test frees the lock and ends B's wait
//! at instants at most 5 ms apart, in both orders. In about half of the races the server handles both events in one
//! iteration of its event loop. All leases last ten minutes, except a lease whose end frees the lock. So a stalled
//! queue stays stalled for longer than a test waits.

use lockward_tests::{Client, DEADLINE, Grant, Random, Reply, Server, eventually, locked, rounds};
use std::collections::HashMap;
use std::ops::AddAssign;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// How the wait of B ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    /// B closes its sending side (FIN), and reads the last replies.
    End,
    /// B's connection breaks (RST).
    BreakOff,
    /// Another client kills B's connection.
    Kill,
    /// B has logged in as a user, and this user is deleted.
    DeleteUser,
    /// Another client unblocks B with CLIENT UNBLOCK, as if B's wait limit were reached.
    Unblock,
    /// Another client unblocks B with CLIENT UNBLOCK ERROR.
    UnblockWithError,
    /// B's owner repeats the wait over another connection.
    Repeat,
    /// B's wait limit is reached.
    Limit,
}

/// The event that frees the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Freeing {
    Release,
    LeaseEnd,
    Delete,
    Transaction,
    Script,
    Flush,
}

const FREEINGS: [Freeing; 6] = [
    Freeing::Release,
    Freeing::LeaseEnd,
    Freeing::Delete,
    Freeing::Transaction,
    Freeing::Script,
    Freeing::Flush,
];

/// The number of races with each outcome.
#[derive(Clone, Copy, Debug, Default)]
struct Outcomes {
    /// The wait ended before the grant: B was never granted the lock.
    before: u32,
    /// B was granted the lock, but left before the server could send the reply. So the server passed the grant on.
    passed_on: u32,
    /// B was granted the lock and received the reply.
    delivered: u32,
    /// B was granted the lock and the server sent the reply, but B left without receiving the reply.
    undelivered: u32,
}

impl Outcomes {
    const fn after(&self) -> u32 {
        self.passed_on + self.delivered + self.undelivered
    }
}

impl AddAssign for Outcomes {
    fn add_assign(&mut self, more: Self) {
        self.before += more.before;
        self.passed_on += more.passed_on;
        self.delivered += more.delivered;
        self.undelivered += more.undelivered;
    }
}

struct Race {
    key: String,
    b: Option<Client>,
    b_id: i64,
    b_heard: bool,
    again: Client,
    c: Client,
}

/// What the test does at one instant of a batch.
#[derive(Clone, Copy)]
enum Action {
    Free,
    ShortenLease,
    AskB,
    AskC,
    End,
}

const BATCH: usize = 50;
/// The length of a lease or a wait limit that ends during the batch.
const SHORT: Duration = Duration::from_millis(30);

struct Course<'a> {
    server: &'a Server,
    ending: Ending,
    random: Random,
    a: Client,
    killer: Client,
    events: Client,
    raced: usize,
}

impl<'a> Course<'a> {
    #[track_caller]
    fn new(server: &'a Server, ending: Ending) -> Self {
        let (mut a, killer, mut events) = (server.client(), server.client(), server.client());
        a.call("CONFIG SET notify-keyspace-events Ed");
        events.call("SUBSCRIBE __keyevent@0__:lock.acquired the-end");
        events.reply();
        Self { server, ending, random: Random::new(), a, killer, events, raced: 0 }
    }

    /// Runs one batch of races.
    #[track_caller]
    fn run(&mut self, freeing: Freeing, count: usize) -> Outcomes {
        let mut races: Vec<Race> = (0..count).map(|_| self.line_up(freeing)).collect();
        if self.ending != Ending::Limit {
            for ask in [Self::ask_b, Self::ask_c] {
                let before = self.a.stat("clients", "blocked_clients");
                races.iter_mut().for_each(|race| ask(self, race));
                self.a.see_blocked(before + i64::try_from(count).unwrap());
            }
        }
        let schedule = self.schedule(freeing, count);
        // Several batches at the same time would disturb each other's timing, so one batch runs at a time.
        static AIM: Mutex<()> = Mutex::new(());
        let aim = locked(&AIM);
        let begun = Instant::now();
        let mut freed = 0;
        for (at, action, number) in schedule {
            while begun.elapsed() < at {
                std::hint::spin_loop();
            }
            let race = &mut races[number];
            match action {
                Action::Free => freed += self.free(freeing, race),
                Action::ShortenLease => {
                    self.a.send(format!("LOCK.RENEW {} A PX {}", race.key, SHORT.as_millis()));
                    freed += 1;
                }
                Action::AskB => self.ask_b(race),
                Action::AskC => self.ask_c(race),
                Action::End => self.end(race),
            }
        }
        drop(aim);
        for _ in 0..freed {
            let reply = self.a.reply();
            assert!(!matches!(reply, Reply::Error(_)), "{reply:?}");
        }
        if matches!(
            self.ending,
            Ending::Kill | Ending::DeleteUser | Ending::Unblock | Ending::UnblockWithError
        ) {
            for _ in &races {
                self.killer.reply().int();
            }
        }
        let delivered: Vec<Option<bool>> = races.iter_mut().map(|race| self.finish(race)).collect();
        let acquired = self.acquired();
        let mut outcomes = Outcomes::default();
        for (race, delivered) in races.iter().zip(delivered) {
            match (acquired[&race.key], delivered) {
                (2, None) => outcomes.before += 1,
                (3, None) => outcomes.passed_on += 1,
                (3, Some(true)) => outcomes.delivered += 1,
                // Only B's second call got the grant. So B's first wait ended before the grant.
                (3, Some(false)) if self.ending == Ending::Repeat => outcomes.before += 1,
                (3, Some(false)) => outcomes.undelivered += 1,
                other => {
                    panic!("{}: wrong number of acquisitions, or wrong result for B: {other:?}", race.key)
                }
            }
        }
        outcomes
    }

    #[track_caller]
    fn line_up(&mut self, freeing: Freeing) -> Race {
        self.raced += 1;
        let key = format!("lock-{:?}-{freeing:?}-{}", self.ending, self.raced);
        self.a.acquire(&format!("{key} A PX 600000"));
        let mut b = self.server.client();
        if self.ending == Ending::DeleteUser {
            self.a.call(format!("ACL SETUSER {key} on nopass ~* +@all"));
            assert_eq!(b.call(format!("AUTH {key} any")), Reply::ok());
        }
        if self.random.once_in(2) {
            b.speak_resp3();
        }
        let b_id = b.id();
        Race { key, b: Some(b), b_id, b_heard: false, again: self.server.client(), c: self.server.client() }
    }

    #[track_caller]
    fn ask_b(&mut self, race: &mut Race) {
        let limit = if self.ending == Ending::Limit { SHORT.as_millis() } else { 0 };
        let mut commands = vec![format!("LOCK.ACQUIRE {} B PX 600000 HOLDS 1 BLOCK {limit}", race.key)];
        if self.random.once_in(4) {
            commands.push("PING".to_owned());
        }
        race.b.as_mut().expect("B is there").send_all(commands);
    }

    #[track_caller]
    fn ask_c(&mut self, race: &mut Race) {
        race.c.ask(&format!("{} C PX 600000 BLOCK 0", race.key));
    }

    /// The actions of a batch, each with its time and the number of its race.
    fn schedule(&mut self, freeing: Freeing, count: usize) -> Vec<(Duration, Action, usize)> {
        const FIRST: i64 = 40_000;
        let mut schedule = Vec::new();
        let at = |micros: i64| Duration::from_micros(micros.unsigned_abs());
        let short = i64::try_from(SHORT.as_micros()).unwrap();
        // The server ends leases and wait limits by timers, which are only exact to milliseconds. So the test uses
        // offsets of microseconds only if neither event is a timer.
        let exact = freeing != Freeing::LeaseEnd && self.ending != Ending::Limit;
        for number in 0..count {
            let freed = if freeing == Freeing::Flush { FIRST } else { FIRST + self.random.within(0..20_000) };
            let offset = match self.random.within(0..4) {
                0 if exact => self.random.within(-300..300),
                1 if exact => self.random.within(-3..3),
                _ => self.random.within(-5_000..5_000),
            };
            match freeing {
                Freeing::LeaseEnd => schedule.push((at(freed - short), Action::ShortenLease, number)),
                Freeing::Flush if number > 0 => {}
                _ => schedule.push((at(freed), Action::Free, number)),
            }
            if self.ending == Ending::Limit {
                schedule.push((at(freed - short + offset), Action::AskB, number));
                schedule.push((at(freed - short + offset + 1), Action::AskC, number));
            } else {
                schedule.push((at(freed + offset), Action::End, number));
            }
        }
        schedule.sort_by_key(|(at, ..)| *at);
        schedule
    }

    /// Sends the commands that free the lock, and returns the number of replies to expect.
    #[track_caller]
    fn free(&mut self, freeing: Freeing, race: &Race) -> usize {
        let key = &race.key;
        let release = format!("LOCK.RELEASE {key} A");
        match freeing {
            Freeing::Release => self.a.send(release),
            Freeing::Delete => self.a.send(format!("{} {key}", self.random.one_of(&["DEL", "UNLINK"]))),
            Freeing::Transaction => {
                self.a.send_all(["MULTI", &release, "EXEC"]);
                return 3;
            }
            Freeing::Script => {
                let script = "return redis.call('LOCK.RELEASE', KEYS[1], 'A')";
                self.a.send(["EVAL", script, "1", key]);
            }
            Freeing::Flush => {
                self.a.send(self.random.one_of(&["FLUSHALL SYNC", "FLUSHALL ASYNC", "FLUSHDB"]))
            }
            Freeing::LeaseEnd => unreachable!("a lease ends by itself"),
        }
        1
    }

    #[track_caller]
    fn end(&mut self, race: &mut Race) {
        match self.ending {
            Ending::End => race.b.as_ref().expect("B is there").end_requests(),
            Ending::BreakOff => {
                let b = race.b.take().expect("B is there");
                race.b_heard = b.has_unread();
                b.break_off();
            }
            Ending::Kill => self.killer.send(format!("CLIENT KILL ID {}", race.b_id)),
            Ending::DeleteUser => self.killer.send(format!("ACL DELUSER {}", race.key)),
            Ending::Unblock => self.killer.send(format!("CLIENT UNBLOCK {}", race.b_id)),
            Ending::UnblockWithError => self.killer.send(format!("CLIENT UNBLOCK {} ERROR", race.b_id)),
            Ending::Repeat => race.again.ask(&format!("{} B PX 600000 HOLDS 1 BLOCK 0", race.key)),
            Ending::Limit => unreachable!("a limit is reached by itself"),
        }
    }

    /// The grant that B's first call has received; `None` if B received null or an error, or if its connection has
    /// ended.
    #[track_caller]
    fn grant_received(&self, race: &mut Race) -> Option<Grant> {
        let b = race.b.as_mut()?;
        match b.reply_within(DEADLINE) {
            Ok(grant @ Reply::Array(_)) => Some(grant.grant()),
            Ok(Reply::NullArray | Reply::Null) => {
                assert!(matches!(self.ending, Ending::Unblock | Ending::Limit | Ending::End));
                None
            }
            Ok(reply) => {
                let expected = match self.ending {
                    Ending::UnblockWithError => "UNBLOCKED",
                    Ending::Repeat => "SUPERSEDED",
                    _ => "no error",
                };
                assert_eq!(reply.error_word(), expected, "{}", race.key);
                None
            }
            Err(lockward_tests::Silence::Closed) => {
                assert!(matches!(self.ending, Ending::End | Ending::Kill | Ending::DeleteUser));
                None
            }
            Err(lockward_tests::Silence::StillOpen) => panic!("{}: B has no reply", race.key),
        }
    }

    /// Waits until one race is over, in which C must get the lock. Returns `None` if B never held the lock. If B held
    /// the lock, returns whether B's first call received the grant.
    #[track_caller]
    fn finish(&mut self, race: &mut Race) -> Option<bool> {
        let received = self.grant_received(race);
        let key = race.key.clone();
        let mut repeated = None;
        if self.ending == Ending::Repeat {
            let grant = race.again.reply().grant();
            assert_eq!(grant.holds, 1, "{key}");
            assert!(
                received.is_none_or(|received| received == grant),
                "{key}: the repeat finds the same grant"
            );
            repeated = Some(grant);
        }
        let mut knows = received.is_some();
        let mut held = received.or(repeated);
        if matches!(self.ending, Ending::BreakOff | Ending::DeleteUser) && held.is_none() {
            // The test cannot see whether the server has sent the reply to B. If the server has sent the reply, B still
            // holds the lock, and a repeated request of B must return the same grant.
            let owner = self.owner_when_settled(race);
            if owner == "B" {
                let token = self.a.holder(&key).token;
                held = Some(race.again.acquire(&format!("{key} B HOLDS 1 PX 600000")));
                assert_eq!(held, Some(Grant { token, holds: 1 }), "{key}: the repeat finds the same grant");
                knows = race.b_heard;
            }
        }
        if let Some(grant) = held {
            let holder = self.a.holder(&key);
            assert_eq!(holder.tenure(), ("B", grant.holds, grant.token), "{key}");
            let release = format!("LOCK.RELEASE {key} B HOLDS 0 TOKEN {}", grant.token);
            assert_eq!(self.a.call(release), Reply::Int(0), "{key}");
        }
        let grant = race.c.reply().grant();
        assert!(held.is_none_or(|held| held.token < grant.token), "{key}");
        assert_eq!(self.a.holder(&key).tenure(), ("C", 1, grant.token), "{key}");
        assert_eq!(race.c.call(format!("LOCK.RELEASE {key} C")), Reply::Int(0), "{key}");
        assert_eq!(self.a.info(&key), None, "{key}");
        held.map(|_| knows)
    }

    /// Waits until the server has noticed that B has left, and has passed B's grant on if there was one. Then
    /// returns the owner of the lock.
    #[track_caller]
    fn owner_when_settled(&mut self, race: &Race) -> String {
        let gone = format!("CLIENT LIST ID {}", race.b_id);
        eventually("B is gone", || self.a.call(&*gone).bytes().is_empty());
        // D waits for 1 ms. The module's timer ends this wait only after all earlier work of the module, such as
        // passing B's grant on.
        assert_eq!(self.a.call(format!("LOCK.ACQUIRE {} D BLOCK 1", race.key)), Reply::NullArray);
        // If A's lease has just ended, the lock has no owner until the module's timer serves the waiters.
        let mut owner = None;
        eventually("the lock has an owner", || {
            owner = self.a.owner(&race.key);
            owner.is_some()
        });
        owner.expect("an owner")
    }

    /// The number of acquisitions of each lock since the last call.
    #[track_caller]
    fn acquired(&mut self) -> HashMap<String, u32> {
        self.a.call("PUBLISH the-end now");
        let mut counts = HashMap::new();
        loop {
            let message = self.events.reply();
            if message.items()[1] == Reply::bulk("the-end") {
                return counts;
            }
            *counts.entry(message.items()[2].text()).or_default() += 1;
        }
    }
}

/// Runs races of `ending` with every event that frees the lock. At the end, checks that no owner holds a lock, no
/// client waits, and no connection is left over.
#[track_caller]
fn race(ending: Ending) -> Vec<Outcomes> {
    let server = Server::start();
    let mut observer = server.client();
    let can_unblock = server.has_redis(7, 4);
    let ends_before = can_unblock || !matches!(ending, Ending::Unblock | Ending::UnblockWithError);
    let mut all_outcomes = Vec::new();
    let mut course = Course::new(&server, ending);
    for freeing in FREEINGS {
        let mut outcomes = Outcomes::default();
        // On a busy machine, all races may have the same order. So the test runs more races, until both orders have
        // occurred.
        let (least, most) = (rounds(42, 2_000), rounds(42, 2_000) + 20 * BATCH);
        let mut raced = 0;
        let both = |outcomes: &Outcomes| (outcomes.before > 0 || !ends_before) && outcomes.after() > 0;
        while raced < least || (raced < most && !both(&outcomes)) {
            let batch = if raced < least { BATCH.min(least - raced) } else { BATCH };
            outcomes += course.run(freeing, batch);
            raced += batch;
        }
        println!("{ending:?} around {freeing:?}: {raced} races, {outcomes:?}");
        assert_eq!(outcomes.before > 0, ends_before, "whether any wait ended before its grant");
        assert!(outcomes.after() > 0, "no wait ended after its grant");
        all_outcomes.push(outcomes);
    }
    drop(course);
    observer.see_blocked(0);
    eventually("all other connections are gone", || observer.stat("clients", "connected_clients") == 1);
    assert_eq!(observer.call("LOCK.TOP"), Reply::Array(vec![]));
    assert_eq!(observer.call("DBSIZE"), Reply::Int(0));
    assert_eq!(observer.call("PING"), Reply::Simple("PONG".into()));
    all_outcomes
}

#[test]
fn a_client_that_ends_its_connection_around_its_grant_does_not_stall_the_queue() {
    let all_outcomes = race(Ending::End);
    assert!(
        all_outcomes.iter().all(|outcomes| outcomes.undelivered == 0),
        "a grant was sent, but not received"
    );
}

#[test]
fn a_client_whose_connection_breaks_around_its_grant_does_not_stall_the_queue() {
    race(Ending::BreakOff);
}

#[test]
fn a_client_that_is_killed_around_its_grant_does_not_stall_the_queue() {
    let all_outcomes = race(Ending::Kill);
    assert!(
        all_outcomes.iter().all(|outcomes| outcomes.undelivered == 0),
        "a grant was sent, but not received"
    );
}

#[test]
fn a_client_whose_user_is_deleted_around_its_grant_does_not_stall_the_queue() {
    race(Ending::DeleteUser);
}

#[test]
fn a_client_that_is_unblocked_around_its_grant_does_not_stall_the_queue() {
    race(Ending::Unblock);
}

#[test]
fn a_client_that_is_unblocked_with_an_error_around_its_grant_does_not_stall_the_queue() {
    race(Ending::UnblockWithError);
}

#[test]
fn a_wait_that_is_repeated_around_its_grant_finds_the_same_grant() {
    race(Ending::Repeat);
}

#[test]
fn a_wait_limit_that_is_reached_around_the_grant_does_not_stall_the_queue() {
    race(Ending::Limit);
}
