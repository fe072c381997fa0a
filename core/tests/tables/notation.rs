//! The notation of the tables, and the world that plays them.
//!
//! A row is `at(milliseconds) action -> results | replication | events`. The last two columns are compared only if a
//! row has these columns. A row without `->` has no result. All rows of a table act on one lock:
//!
//! | action | what it does |
//! | --- | --- |
//! | `A acquires`, `A releases`, `A renews` | a request of owner A, with options such as `lease 50`, `holds 2`, `token 7`, `slots 3`, `weight 2`, `shared`, `all`; `with nobody listening` means without a replica or an AOF |
//! | `A waits as 7` | acquires, and joins the queue with handle 7 if the lock is busy; further options are `limit 50` and `keep 90` |
//! | `7 leaves` | the client of waiter 7 disconnects |
//! | `7 is unblocked` | CLIENT UNBLOCK ends the wait |
//! | `A passes on token 2` | the grant to A with token 2 is passed on, because the client of this grant disconnected before the reply; `for 7` keeps the place that waiter 7 had |
//! | `the places are` | shows the owners of the kept places, and whether each place holds back the waiters behind it |
//! | `A releases as replica` | a release that a replica receives |
//! | `the timer fires` | ends waits at their limits, and decides on a lock that is due |
//! | `the lock is rechecked` | decides on a lock that may have changed without a decision |
//! | `5000 hold it until 100` | replaces the lock by another lock, which readers `1` to `5000` hold until 100; the token of each reader is its number |
//! | `A holds it with token 9` | replaces the lock by another lock, which A holds with token 9, as RENAME does |
//! | `quarantine lasts 100`, `the wall clock shows 7000`, `token 9 is observed` | change the state of the world |
//! | `the lock is`, `the queue is`, `the counters are`, `the lock is due`, `the queues are due` | show the state of the world |
//!
//! Results are the reply and then what waiters get: `0 left; 7 gets 1 hold, token 2`. The wall clock stays at zero
//! until a row sets it, so the tokens are 1, 2, 3 and so on. A lease is 100 ms if the row names no lease.

use lockward_core::encoding::{self, Origin};
use lockward_core::{
    Absence, AcquireRequest, Acquired, Change, Completion, Counters, Db, Decision, Effects, End, Event,
    FencingToken, Holder, HoldsLeft, Instant, LimitReached, Lock, Mode, NotHeld, Now, Outcome, Owner,
    Propagation, Quarantine, QuarantineMemory, QueueLimits, Refusal, ReleaseRequest, RenewRequest, Slots,
    Span, TokenSource, WaitQueues, WaitRequest, Waiter, WallTime, Weight,
};

use std::collections::HashMap;

/// Plays a table on a new lock.
#[track_caller]
pub fn table(rows: &str) {
    let mut world = World::new();
    for row in rows.lines() {
        world.play(row);
    }
}

pub fn instant(ms: i64) -> Instant {
    Instant::from_micros(ms * 1_000)
}

pub fn span(ms: u64) -> Span {
    Span::from_millis(ms).unwrap()
}

pub fn token(number: u64) -> FencingToken {
    FencingToken::new(number).unwrap()
}

pub fn owner(name: &str) -> Owner {
    Owner::new(name.as_bytes()).unwrap()
}

const DB: Db = Db(0);
const KEY: &[u8] = b"lock";

/// One lock, and the state that a decision on this lock needs.
pub struct World {
    pub lock: Lock,
    pub quarantine: Quarantine,
    pub quarantine_memory: QuarantineMemory,
    pub effects: Effects<u32>,
    queues: WaitQueues<u32>,
    tokens: TokenSource,
    counters: Counters,
    limits: QueueLimits,
    /// The places of waiters that were granted the lock, by handle.
    left_places: HashMap<u32, Waiter<u32>>,
    mono: Instant,
    wall: WallTime,
}

impl World {
    pub fn new() -> Self {
        Self {
            lock: Lock::new(),
            quarantine: Quarantine::new(instant(0), Span::default()),
            quarantine_memory: QuarantineMemory::default(),
            effects: Effects::default(),
            queues: WaitQueues::default(),
            tokens: TokenSource::default(),
            counters: Counters::default(),
            limits: QueueLimits { per_lock: 100, total: 100 },
            left_places: HashMap::new(),
            mono: instant(0),
            wall: WallTime::EPOCH,
        }
    }

    pub fn now(&self) -> Now {
        Now { mono: self.mono, wall: self.wall }
    }

    /// Plays one row of a table, and compares its results.
    #[track_caller]
    pub fn play(&mut self, row: &str) {
        let (action, expected) = row.split_once("->").unwrap_or((row, ""));
        let (at, action) =
            action.trim().strip_prefix("at(").and_then(|rest| rest.split_once(')')).expect("at(ms) ...");
        let at = at_micros(at);
        assert!(self.mono <= at, "time goes backward: {row}");
        self.mono = at;
        self.effects.clear();
        let words: Vec<&str> = action.split_whitespace().collect();
        let reply = self.act(words[0], words[1], &words[2..]);

        for Completion { waiter, .. } in &self.effects.completions {
            let handle = waiter.wait_request.handle;
            self.left_places.extend(waiter.place().map(|place| (handle, place)));
        }
        let mut columns = expected.split('|').map(str::trim);
        let results: Vec<_> = reply.into_iter().chain(self.effects.completions.iter().map(result)).collect();
        assert_eq!(results.join("; "), columns.next().unwrap_or(""), "{row}");
        if let Some(replicated) = columns.next() {
            assert_eq!(self.replicated(), replicated, "replicated by: {row}");
        }
        if let Some(expected) = columns.next() {
            let events: Vec<_> = self.effects.events.iter().map(event).collect();
            assert_eq!(events.join(" "), expected, "events of: {row}");
        }
        self.check(row);
    }

    fn act(&mut self, subject: &str, verb: &str, rest: &[&str]) -> Option<String> {
        match (subject, verb, rest) {
            ("the", "lock", ["is"]) => Some(self.holders()),
            ("the", "queue", ["is"]) => Some(self.waiters()),
            ("the", "counters", ["are"]) => Some(counts(&self.counters)),
            ("the", "lock", ["is", "due"]) => Some(when(self.decide(|decision| decision.due()))),
            ("the", "queues", ["are", "due"]) => Some(when(self.queues.next_due())),
            ("the", "lock", ["is", "rechecked"]) => {
                self.decide(|decision| decision.recheck());
                None
            }
            ("the", "places", ["are"]) => Some(self.places()),
            ("the", "timer", ["fires"]) => {
                self.fire_timer();
                None
            }
            ("the", "wall", ["clock", "shows", micros]) => {
                self.wall = WallTime::from_micros(micros.parse().unwrap());
                None
            }
            ("token", number, ["is", "observed"]) => {
                self.tokens.observe(token(number.parse().unwrap()));
                None
            }
            ("there", "may", ["be", count, "waiters"]) => {
                self.limits.per_lock = count.parse().unwrap();
                None
            }
            ("quarantine", "lasts", [ms]) => {
                self.quarantine = Quarantine::new(self.mono, span(ms.parse().unwrap()));
                None
            }
            (count, "hold", ["it", "until", ms]) => {
                let (deadline, since) = (instant(ms.parse().unwrap()), self.mono);
                let mode = Mode { slots: Slots::SHARED, weight: Weight::ONE };
                let reader = |number: u64| Holder {
                    owner: owner(&number.to_string()),
                    holds: 1,
                    mode,
                    token: token(number),
                    deadline,
                    since,
                };
                let count = count.parse().unwrap();
                self.lock = Lock::held_by((1..=count).map(reader).collect(), WallTime::EPOCH).unwrap();
                self.tokens.observe(token(count));
                None
            }
            (name, "holds", ["it", "with", "token", number, mode @ ..]) => {
                let (number, mut mode) = (token(number.parse().unwrap()), Options(mode.to_vec()));
                let slots = slots(&mut mode).unwrap_or(Slots::EXCLUSIVE);
                self.tokens.observe(number);
                let (deadline, since) = (self.mono.after(span(100)), self.mono);
                let mode = Mode { slots, weight: Weight::ONE };
                let holder = Holder { owner: owner(name), holds: 1, mode, token: number, deadline, since };
                self.lock = Lock::held_by(vec![holder], WallTime::EPOCH).unwrap();
                None
            }
            (handle, "leaves", []) => Some(self.leave(handle, Absence::Disconnected)),
            (handle, "is", ["unblocked"]) => Some(self.leave(handle, Absence::LimitReached)),
            (name, verb, rest) => {
                let mut options = Options(rest.to_vec());
                if options.flag(&["with", "nobody", "listening"]) {
                    self.effects.skip_encoding();
                }
                let reply = self.request(name, verb, &mut options);
                assert!(options.0.is_empty(), "what does {:?} mean?", options.0);
                reply
            }
        }
    }

    fn request(&mut self, name: &str, verb: &str, options: &mut Options) -> Option<String> {
        match verb {
            "acquires" => Some(self.acquire(name, None, options)),
            "waits" => {
                let handle = options.after(&["as"]).unwrap();
                Some(self.acquire(name, Some(handle), options))
            }
            "releases" => Some(self.release(name, options)),
            "renews" => {
                let request = RenewRequest {
                    owner: owner(name),
                    lease: span(options.after(&["lease"]).unwrap_or(100)),
                    token: options.after(&["token"]).map(token),
                    holds: options.after(&["holds"]),
                    slots: slots(options),
                    weight: options.after(&["weight"]).and_then(Weight::new),
                };
                let token = self.decide(|decision| decision.renew(&request));
                Some(token.map_or_else(refusal, |token| format!("token {}", token.get())))
            }
            "passes" => {
                let token = token(options.after(&["on", "token"]).unwrap());
                let place = options.after(&["for"]).and_then(|handle: u32| self.left_places.remove(&handle));
                let ended = self.decide(|decision| decision.pass_on(&owner(name), token));
                if let Some(place) = place.filter(|_| ended) {
                    self.queues.keep(DB, KEY, place, self.limits, self.mono);
                }
                None
            }
            _ => panic!("what does {verb} mean?"),
        }
    }

    fn acquire(&mut self, name: &str, waits_as: Option<u32>, options: &mut Options) -> String {
        let request = AcquireRequest {
            owner: owner(name),
            lease: span(options.after(&["lease"]).unwrap_or(100)),
            holds: options.after(&["holds"]),
            slots: slots(options).unwrap_or(Slots::EXCLUSIVE),
            weight: options.after(&["weight"]).and_then(Weight::new),
        };
        let keep = options.after(&["keep"]).map(span);
        let wait_limit = options.after(&["limit"]).map(|limit| self.mono.after(span(limit)));
        match (self.decide(|decision| decision.acquire(&request)), waits_as) {
            (Ok(Acquired::Granted(grant)), _) => {
                format!("granted {}, token {}", holds(grant.holds), grant.token.get())
            }
            (Ok(Acquired::Busy), None) => "busy".to_owned(),
            (Ok(Acquired::Busy), Some(handle)) => {
                let wait_request = WaitRequest { request, wait_limit, keep, handle };
                let may_join = self.queues.may_join(DB, KEY, &wait_request.request, self.limits);
                if let Err(full) = may_join {
                    return format!("{full:?} is full").to_lowercase();
                }
                let superseded = self.queues.join(DB, KEY, wait_request, self.limits, self.mono);
                self.effects.completions.extend(superseded);
                // The caller of `join` must decide again, because the new wait may have taken over the first place in
                // the queue, and a new queue has no due time yet.
                self.decide(|decision| decision.expire_and_serve());
                "waits".to_owned()
            }
            (Err(refused), _) => refusal(refused),
        }
    }

    fn release(&mut self, name: &str, options: &mut Options) -> String {
        let as_replica = options.flag(&["as", "replica"]);
        let left = match (options.flag(&["all"]), options.after(&["holds"])) {
            (true, None) => HoldsLeft::None,
            (false, Some(holds)) => HoldsLeft::Exactly(holds),
            (false, None) => HoldsLeft::OneLess,
            (true, Some(_)) => panic!("all or a count"),
        };
        let token = options.after(&["token"]).map(token);
        let request = ReleaseRequest { owner: owner(name), left, token };
        let left = self.decide(|decision| {
            if as_replica { decision.apply_release(&request) } else { decision.release(&request) }
        });
        left.map_or_else(refusal, |left| format!("{left} left"))
    }

    /// Does the work of the wake-up timer: first ends the waits that have reached their limits, and then decides on the
    /// lock if its queue is due.
    fn fire_timer(&mut self) {
        while let Some(reached) = self.queues.pop_limit_reached(self.mono) {
            if let LimitReached::Wait(waiter) = reached {
                self.effects.completions.push(Completion { waiter, outcome: Outcome::NotAcquired });
            }
        }
        if let Some((queue, _)) = self.queues.pop_due(self.mono) {
            assert_eq!(self.queues.queue(DB, KEY), Some(queue));
            self.decide(|decision| decision.expire_and_serve());
        }
        assert_eq!(self.queues.pop_due(self.mono), None, "a queue is due again at once");
    }

    fn decide<T>(&mut self, act: impl FnOnce(&mut Decision<'_, u32>) -> T) -> T {
        let now = self.now();
        let in_quarantine = self.quarantine.ends(now.mono).is_some();
        let mut decision = Decision {
            lock: &mut self.lock,
            queue: self.queues.queue(DB, KEY),
            queues: &mut self.queues,
            tokens: &mut self.tokens,
            quarantine: self.quarantine,
            quarantine_memory: in_quarantine.then_some(&mut self.quarantine_memory),
            effects: &mut self.effects,
            counters: &mut self.counters,
            now,
        };
        let answer = act(&mut decision);
        let due = decision.due();
        if let Some(queue) = self.queues.queue(DB, KEY) {
            self.queues.set_due(queue, due);
        }
        answer
    }

    /// Checks the first waiter, unless a lease is over or a quarantine lasts: this waiter must not fit beside the
    /// holders.
    #[track_caller]
    fn check(&self, row: &str) {
        let first = self.queues.queue(DB, KEY).and_then(|queue| self.queues.front(queue));
        let fits = |waiter: &Waiter<u32>| self.lock.load().admits(waiter.wait_request.request.mode());
        let no_lease_is_over = self.lock.first_deadline().is_none_or(|deadline| self.mono < deadline);
        if no_lease_is_over && self.quarantine.ends(self.mono).is_none() {
            assert!(!first.is_some_and(fits), "the first waiter was not served: {row}");
        }
    }

    fn holders(&self) -> String {
        let holders = self.lock.holders().map(|holder| {
            let Mode { slots, weight } = holder.mode;
            let slots = match (slots.number(), weight.number()) {
                (0, 1) => ", shared".to_owned(),
                (0, weight) => format!(", shared weight {weight}"),
                (1, _) => String::new(),
                (slots, 1) => format!(", slots {slots}"),
                (slots, weight) => format!(", slots {slots} weight {weight}"),
            };
            format!(
                "{} {}, token {}, until {}{slots}",
                holder.owner.to_bytes().escape_ascii(),
                holds(holder.holds),
                holder.token.get(),
                instant(0).until(holder.deadline).as_millis(),
            )
        });
        let holders: Vec<_> = holders.collect();
        if holders.is_empty() { "free".to_owned() } else { holders.join("; ") }
    }

    fn waiters(&self) -> String {
        let queue = self.queues.queue(DB, KEY);
        let waiters = queue.into_iter().flat_map(|queue| self.queues.waiters_in(queue)).map(|waiter| {
            let (handle, owner) = (waiter.wait_request.handle, &waiter.wait_request.request.owner);
            let since = waiter.since.since(instant(0)).as_millis();
            format!("{handle} {} since {since}", owner.to_bytes().escape_ascii())
        });
        let waiters: Vec<_> = waiters.collect();
        if waiters.is_empty() { "nobody".to_owned() } else { waiters.join(", ") }
    }

    fn places(&self) -> String {
        let queue = self.queues.queue(DB, KEY);
        let places =
            queue.into_iter().flat_map(|queue| self.queues.places_in(queue)).map(|(owner, holds_back)| {
                let state = if holds_back { "holds back" } else { "is passed over" };
                format!("{} {state}", owner.to_bytes().escape_ascii())
            });
        let places: Vec<_> = places.collect();
        if places.is_empty() { "none".to_owned() } else { places.join(", ") }
    }

    fn leave(&mut self, handle: &str, absence: Absence) -> String {
        let left = self.queues.leave(handle.parse().unwrap(), absence, self.mono);
        self.decide(|decision| decision.expire_and_serve());
        left.map_or("does not wait", |_| "left").to_owned()
    }

    pub fn replicated_changes(&self) -> Vec<Change> {
        match self.effects.propagation() {
            Propagation::Changes(payload) => encoding::decode(payload, Origin::Live, self.now()).unwrap(),
            Propagation::Nothing | Propagation::Verbatim => panic!("no changes are replicated"),
        }
    }

    pub fn replicated(&self) -> String {
        match self.effects.propagation() {
            Propagation::Nothing => "nothing".to_owned(),
            Propagation::Verbatim => "verbatim".to_owned(),
            Propagation::Changes(_) => {
                let changes = self.replicated_changes();
                changes.iter().map(|change| self.change(change)).collect::<Vec<_>>().join(", ")
            }
        }
    }

    fn change(&self, change: &Change) -> String {
        match change {
            Change::Put(holder) => format!(
                "put {} {}, token {}, {} left",
                holder.owner.to_bytes().escape_ascii(),
                holds(holder.holds),
                holder.token.get(),
                holder.lease_left(self.mono).as_millis(),
            ),
            Change::Count(token, count) => format!("token {} has {}", token.get(), holds(*count)),
            Change::End(token, End::Released) => format!("end {} released", token.get()),
            Change::End(token, End::LeaseOver) => format!("end {} over", token.get()),
            Change::AllOver => "all over".to_owned(),
        }
    }
}

fn slots(options: &mut Options<'_>) -> Option<Slots> {
    let number = if options.flag(&["shared"]) { Some(0) } else { options.after(&["slots"]) };
    number.map(|number| Slots::new(number).unwrap())
}

/// The options of a row. Reading an option removes it.
struct Options<'a>(Vec<&'a str>);

impl Options<'_> {
    fn find(&self, words: &[&str]) -> Option<usize> {
        self.0.windows(words.len()).position(|window| window == words)
    }

    fn flag(&mut self, words: &[&str]) -> bool {
        let found = self.find(words);
        found.map(|at| self.0.drain(at..at + words.len())).is_some()
    }

    /// The number after these words.
    fn after<T: std::str::FromStr<Err: std::fmt::Debug>>(&mut self, words: &[&str]) -> Option<T> {
        let at = self.find(words)?;
        let number = self.0.drain(at..=at + words.len()).next_back()?;
        Some(number.parse().unwrap())
    }
}

/// An instant from a text in milliseconds, such as `99.999`, which is a microsecond before 100 ms.
fn at_micros(ms: &str) -> Instant {
    let (whole, part) = ms.split_once('.').unwrap_or((ms, "0"));
    let whole: i64 = whole.parse().unwrap();
    let part: i64 = format!("{part:0<3}").parse().unwrap();
    Instant::from_micros(whole * 1_000 + part)
}

fn when(due: Option<Instant>) -> String {
    due.map_or_else(|| "never".to_owned(), |due| format!("at {}", instant(0).until(due).as_millis()))
}

fn holds(count: u32) -> String {
    if count == 1 { "1 hold".to_owned() } else { format!("{count} holds") }
}

fn result(completion: &Completion<u32>) -> String {
    let handle = completion.waiter.wait_request.handle;
    match completion.outcome {
        Outcome::Granted(grant) => {
            let repeated = if grant.counted { "" } else { " as before" };
            format!("{handle} gets {}, token {}{repeated}", holds(grant.holds), grant.token.get())
        }
        Outcome::NotAcquired => format!("{handle} gets nothing"),
        Outcome::Refused(refused) => format!("{handle} gets {}", refusal(refused)),
        Outcome::Superseded => format!("{handle} is superseded"),
        Outcome::WrongType | Outcome::NotServed | Outcome::BecameReplica => {
            panic!("a decision never ends a wait in this way")
        }
    }
}

fn refusal(refused: Refusal) -> String {
    match refused {
        Refusal::NotHeld(NotHeld::Free) => "not held: free".to_owned(),
        Refusal::NotHeld(NotHeld::ByAnother(token)) => format!("not held: another has token {}", token.get()),
        Refusal::NotHeld(NotHeld::OtherToken(token)) => format!("not held: it has token {}", token.get()),
        Refusal::Holds { has } => format!("holds do not follow: has {has}"),
        Refusal::Mode { has } => {
            format!("mode differs: has slots {} weight {}", has.slots.number(), has.weight.number())
        }
        Refusal::TooManyHolds => "too many holds".to_owned(),
        Refusal::TokensUsedUp => "tokens used up".to_owned(),
        Refusal::TokenFarAhead => "token far ahead".to_owned(),
    }
}

fn event(event: &Event) -> &'static str {
    match event {
        Event::Acquired => "acquired",
        Event::Released => "released",
        Event::Renewed => "renewed",
        Event::LeaseOver => "lease-over",
    }
}

/// The counters that are not zero, and the longest of the durations.
fn counts(counters: &Counters) -> String {
    let counts = [
        ("acquired", counters.acquired),
        ("re-entered", counters.re_entered),
        ("handed off", counters.handed_off),
        ("released", counters.released),
        ("renewed", counters.renewed),
        ("leases ended", counters.leases_ended),
        ("restored", counters.restored),
    ];
    let counts = counts.iter().filter(|(_, count)| *count > 0).map(|(name, count)| format!("{name} {count}"));
    let durations = [("waited", &counters.wait_durations), ("held for", &counters.tenure_durations)];
    let durations = durations.iter().filter(|(_, known)| !known.is_empty());
    counts
        .chain(durations.map(|(name, known)| format!("{name} {} ms", known.max() / 1_000)))
        .collect::<Vec<_>>()
        .join(", ")
}
