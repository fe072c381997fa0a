//! The reference client: it follows the protocol, and its success shows that a client can pass the suite. With a defect
//! built in, the client shows that the suite finds this defect.
//!
//! The client knows only one server, and no TLS. It is simple but slow: each command has its own thread, and threads
//! look for new work every two milliseconds.

use crate::defects::{DEFECTS, Defect};
use crate::wait_turns::WaitTurns;
use lockward_tests::{Client, Reply, Silence, locked};
use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use std::{fs, slice, thread};

/// How often a thread checks for new work.
const TICK: Duration = Duration::from_millis(2);
const LONGEST_WAIT: Duration = Duration::from_secs(1_000_000);
const KEEP_MS: u128 = 5_000;
/// A wait accepts a reply for this long after its wait limit.
const GRACE: Duration = Duration::from_millis(100);

/// Serves the commands of the suite.
pub(crate) fn serve(mut words: Vec<String>) {
    let mut defect = None;
    if words.first().is_some_and(|word| word == "--defect") {
        let name = words.drain(..2).next_back();
        defect =
            DEFECTS.map(|(defect, _)| defect).into_iter().find(|defect| Some(format!("{defect:?}")) == name);
    }
    // The first command opens the client. The command `close` ends this process, so the process serves one client only.
    let mut lines = io::stdin().lines().map_while(Result::ok);
    let opening = lines.next().unwrap_or_default();
    words.extend(opening.split(' ').skip(2).map(str::to_owned));
    let settings: HashMap<String, u64> = words
        .iter()
        .filter_map(|word| word.split_once('='))
        .filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?)))
        .collect();
    let setting = |name: &str, default| settings.get(name).copied().unwrap_or(default);
    let plain = words[0].strip_prefix("redis://127.0.0.1:").and_then(|port| port.parse().ok());
    let has_certificates = words.iter().any(|word| word.starts_with("ca="));
    let lockward = Arc::new(Lockward {
        port: plain.unwrap_or(0),
        patience: Duration::from_millis(setting("patience", 5_000)),
        response_limit: Duration::from_millis(setting("response-limit", 2_000)),
        waiting_connections: usize::try_from(setting("waiting-connections", 256)).expect("a count"),
        turns: Mutex::default(),
        defect,
        process: fs::read_to_string("/proc/sys/kernel/random/uuid").expect("a UUID").trim().to_owned(),
        tenures: AtomicU64::new(0),
        idle: Mutex::default(),
        held: Mutex::default(),
        renewals: Mutex::default(),
        late_release: Mutex::default(),
    });
    let is_supported = plain.is_some() && !has_certificates;
    {
        let lockward = Arc::clone(&lockward);
        let watching = Arc::clone(&lockward);
        thread::spawn(move || watching.watch_all());
        thread::spawn(move || lockward.renew_all());
        println!("0 ok");
    }
    let calls: Calls = Arc::default();
    for line in lines {
        let (id, command) = line.split_once(' ').expect("an ID");
        if command == "close" {
            return;
        }
        let (id, command) = (id.to_owned(), command.to_owned());
        let call = Arc::new(Call::default());
        locked(&calls).insert(id.clone(), Arc::clone(&call));
        let (lockward, calls) = (Arc::clone(&lockward), Arc::clone(&calls));
        thread::spawn(move || {
            let reply = if is_supported {
                lockward.obey(&command, &call, &calls)
            } else {
                Ok("unsupported".to_owned())
            };
            println!("{id} {}", reply.unwrap_or_else(|end| end.text()));
        });
    }
}

type Calls = Arc<Mutex<HashMap<String, Arc<Call>>>>;

/// A command of the suite that is in progress.
#[derive(Default)]
struct Call {
    is_cancelled: AtomicBool,
}

/// Why a call ends without success.
enum End {
    Busy,
    Cancelled,
    Lost,
    Refused(String),
    Unreachable,
    Unreplicated,
    Other(String),
}

impl End {
    fn text(self) -> String {
        match self {
            Self::Busy => "busy".to_owned(),
            Self::Cancelled => "cancelled".to_owned(),
            Self::Lost => "error lost the lock is lost".to_owned(),
            Self::Refused(text) => format!("error refused {text}"),
            Self::Unreachable => "error unreachable no server answers".to_owned(),
            Self::Unreplicated => "error unreplicated too few replicas".to_owned(),
            Self::Other(text) => format!("error other {text}"),
        }
    }
}

struct Lockward {
    port: u16,
    patience: Duration,
    response_limit: Duration,
    waiting_connections: usize,
    turns: Mutex<WaitTurns>,
    defect: Option<Defect>,
    process: String,
    tenures: AtomicU64,
    idle: Mutex<Vec<Client>>,
    held: Mutex<HashMap<String, Arc<Tenure>>>,
    /// Set when a connection has broken. Then the client renews all locks at once.
    renewals: Mutex<bool>,
    /// With [`Defect::LateRelease`]: the release that must be repeated.
    late_release: Mutex<Option<String>>,
}

/// The arguments of a request for a lock.
#[derive(Clone, Default)]
struct Request {
    keys: Vec<String>,
    owner: Option<String>,
    wait: Option<Duration>,
    lease: Option<u128>,
    kind: String,
    hold_limit: Option<Duration>,
    replicas: Option<(String, String)>,
    slow_lost: Duration,
    no_renewal: bool,
}

/// One key of a held lock.
#[derive(Clone)]
struct Part {
    key: String,
    owner: String,
    token: i64,
}

struct Tenure {
    name: String,
    parts: Vec<Part>,
    slow_lost: Duration,
    renews: AtomicBool,
    hold_limit: Option<Instant>,
    state: Mutex<State>,
}

struct State {
    kind: String,
    /// The kind before the last downgrade. If the server has refused the downgrade, the kind that the downgrade named.
    other_kind: String,
    lease: u128,
    holds: u64,
    /// The end of the lease on the local clock.
    end: Instant,
    renewed: Instant,
    phase: Phase,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Held,
    Lost,
    Released,
    HandedOver,
}

/// The limits of one call, and whether its requests have had replies.
struct Attempt<'c> {
    call: &'c Call,
    /// The keys that the call already holds while it waits for the next key. The attempt is over when one of these keys
    /// is lost.
    held: Vec<Arc<Tenure>>,
    /// When the call gives up on a server that does not answer; `None` while only the wait limit counts.
    patience: Option<Instant>,
    /// The end of the wait limit, with a grace time for a reply.
    limit: Option<Instant>,
    has_heard: bool,
    /// Whether a request had no reply.
    has_lost: bool,
    pause: Duration,
}

impl Attempt<'_> {
    fn is_over(&self) -> Option<End> {
        let now = Instant::now();
        if self.call.is_cancelled.load(Ordering::SeqCst) {
            return Some(End::Cancelled);
        }
        if self.held.iter().any(|tenure| locked(&tenure.state).phase != Phase::Held) {
            return Some(End::Lost);
        }
        if self.limit.is_some_and(|limit| now >= limit) {
            return Some(if self.has_heard { End::Busy } else { End::Unreachable });
        }
        self.patience.is_some_and(|patience| now >= patience).then_some(End::Unreachable)
    }

    /// Waits before the next repetition of a request. The first repetition comes at once.
    fn pause(&mut self) -> Result<(), End> {
        let end = Instant::now() + self.pause;
        self.pause = (self.pause * 2).clamp(Duration::from_millis(50), Duration::from_secs(1));
        while Instant::now() < end {
            if let Some(end) = self.is_over() {
                return Err(end);
            }
            thread::sleep(TICK);
        }
        Ok(())
    }
}

fn is_transient(text: &str) -> bool {
    const CODES: &str =
        "LOADING BUSY READONLY NOREPLICAS CLUSTERDOWN TRYAGAIN MASTERDOWN UNBLOCKED SUPERSEDED MOVED";
    CODES.split(' ').any(|code| has_code(text, code)) || text.starts_with("ERR max number of clients")
}

fn has_code(text: &str, code: &str) -> bool {
    text.split(' ').next() == Some(code)
}

/// The largest lease that the server allows, if the error text names this lease.
fn largest_lease(text: &str) -> Option<u128> {
    let rest = text.strip_prefix("ERR invalid expire time")?;
    rest.split_once(": at most ")?.1.split(' ').next()?.parse().ok()
}

fn millis(text: &str) -> Duration {
    Duration::from_millis(text.parse().expect("milliseconds"))
}

fn spaced(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!(" {text}") }
}

impl Request {
    fn parse(words: &[&str]) -> Self {
        let mut request = Self { keys: words[0].split(',').map(str::to_owned).collect(), ..Self::default() };
        let (mut slots, mut weight) = (None, None);
        for word in &words[1..] {
            let (name, value) = word.split_once('=').unwrap_or((word, ""));
            match name {
                "wait" => request.wait = Some(millis(value)),
                "lease" => request.lease = Some(millis(value).as_millis()),
                "shared" => request.kind = "SHARED".to_owned(),
                "slots" => slots = Some(value),
                "weight" => weight = Some(value),
                "owner" => request.owner = Some(value.to_owned()),
                "hold-limit" => request.hold_limit = Some(millis(value)),
                "replicas" => {
                    request.replicas = value.split_once(':').map(|(n, ms)| (n.to_owned(), ms.to_owned()));
                }
                "slow-lost" => request.slow_lost = millis(value),
                "no-renewal" => request.no_renewal = true,
                _ => panic!("no option: {word}"),
            }
        }
        if let Some(slots) = slots {
            request.kind = format!("SLOTS {slots}");
            if let Some(weight) = weight {
                request.kind += &format!(" WEIGHT {weight}");
            }
        }
        request
    }
}

impl Lockward {
    fn has(&self, defect: Defect) -> bool {
        self.defect == Some(defect)
    }

    fn obey(self: &Arc<Self>, command: &str, call: &Call, calls: &Calls) -> Result<String, End> {
        let words: Vec<&str> = command.split(' ').collect();
        match *words {
            ["acquire", name, ref request @ ..] => {
                let tokens = self.acquire(name, Request::parse(request), call)?.tokens();
                Ok(format!("held {tokens}"))
            }
            ["cancel", id] => {
                if !self.has(Defect::SwallowsCancel)
                    && let Some(call) = locked(calls).get(id)
                {
                    call.is_cancelled.store(true, Ordering::SeqCst);
                }
                Ok("ok".to_owned())
            }
            ["reenter", name, ref options @ ..] => self.reenter(name, options, call),
            ["release", name] => self.release(name, call),
            ["renew", name] => self.renew(name, None, call),
            ["downgrade", name, kind] => {
                let present = locked(&self.tenure(name)?.state).kind.clone();
                let weight = present.find(" WEIGHT ").map_or("", |start| &present[start..]);
                let kind = match kind.strip_prefix("slots=") {
                    Some(slots) => format!("SLOTS {slots}{weight}"),
                    None if weight.is_empty() => "SHARED".to_owned(),
                    None => format!("SLOTS 1000000{weight}"),
                };
                self.renew(name, Some(kind), call)
            }
            ["status", name] => {
                let tenure = self.tenure(name)?;
                let state = locked(&tenure.state);
                let is_held = state.phase == Phase::Held && Instant::now() < state.end;
                Ok(if is_held { "held" } else { "lost" }.to_owned())
            }
            ["guarded", name, ref command @ ..] => self.guarded(name, &command.join(" "), call),
            ["handle", name] => {
                let tenure = self.tenure(name)?;
                let mut state = locked(&tenure.state);
                state.phase = Phase::HandedOver;
                let Part { key, owner, token } = &tenure.parts[0];
                let (holds, lease, kind) = (state.holds, state.lease, state.kind.replace(' ', "+"));
                Ok(format!("handle {key}|{owner}|{token}|{holds}|{lease}|{kind}"))
            }
            ["resume", name, handle] => self.resume(name, handle, call),
            ["lead", name, ref request @ ..] => self.lead(name, Request::parse(request), call),
            ["resign", name] => {
                let tenure = self.tenure(name)?;
                tenure.renews.store(false, Ordering::SeqCst);
                Ok("ok".to_owned())
            }
            ["pairs", key, seconds] => {
                let end = Instant::now() + millis(seconds) * 1_000;
                let mut pairs = 0;
                while Instant::now() < end {
                    self.acquire("pairs", Request::parse(&[key, "wait=0"]), call)?;
                    self.release("pairs", call)?;
                    pairs += 1;
                }
                Ok(format!("pairs {pairs}"))
            }
            _ => Ok("unsupported".to_owned()),
        }
    }

    fn tenure(&self, name: &str) -> Result<Arc<Tenure>, End> {
        locked(&self.held).get(name).cloned().ok_or_else(|| End::Other(format!("nothing is named {name}")))
    }

    fn attempt<'c>(&self, call: &'c Call, limit: Option<Duration>) -> Attempt<'c> {
        Attempt {
            call,
            held: Vec::new(),
            patience: Some(Instant::now() + self.patience),
            limit: limit.map(|limit| Instant::now() + limit),
            has_heard: false,
            has_lost: false,
            pause: Duration::ZERO,
        }
    }

    // Requests.

    fn new_connection(&self) -> Option<Client> {
        Client::connect(self.port).ok()
    }

    /// Sends requests on a connection and waits for all replies, until `limit` or until the attempt is over.
    fn exchange(
        &self,
        connection: &mut Client,
        requests: &[String],
        limit: Duration,
        attempt: Option<&Attempt<'_>>,
    ) -> Option<Vec<Reply>> {
        connection.try_send_all(requests.iter().map(String::as_str)).ok()?;
        let end = Instant::now() + limit;
        let mut replies = Vec::new();
        while replies.len() < requests.len() {
            match connection.reply_within(TICK * 2) {
                Ok(reply) => replies.push(reply),
                Err(Silence::Closed) => return None,
                Err(Silence::StillOpen) => {
                    let is_over = attempt.is_some_and(|attempt| attempt.is_over().is_some());
                    if Instant::now() >= end || is_over {
                        return None;
                    }
                }
            }
        }
        Some(replies)
    }

    /// Sends requests on a shared connection and waits for all replies, as [`Self::exchange`] does. If the connection
    /// breaks, drops all shared connections.
    fn exchange_shared(
        &self,
        requests: &[String],
        limit: Duration,
        attempt: Option<&Attempt<'_>>,
    ) -> Option<Vec<Reply>> {
        let idle = locked(&self.idle).pop();
        let mut connection = idle.or_else(|| self.new_connection())?;
        let replies = self.exchange(&mut connection, requests, limit, attempt);
        if replies.is_some() {
            locked(&self.idle).push(connection);
        } else {
            locked(&self.idle).clear();
        }
        replies
    }

    /// Sends requests again and again until they have final replies.
    fn ask(&self, requests: &[String], attempt: &mut Attempt<'_>) -> Result<Vec<Reply>, End> {
        let is_release = requests[0].starts_with("LOCK.RELEASE");
        loop {
            if let Some(end) = attempt.is_over() {
                return Err(end);
            }
            if let Some(replies) = self.exchange_shared(requests, self.response_limit, Some(attempt)) {
                let error = if let Reply::Error(text) = &replies[0] { text } else { "" };
                // These two errors do not show that a primary accepts writes.
                if !has_code(error, "READONLY") && !has_code(error, "NOREPLICAS") {
                    attempt.has_heard = true;
                    attempt.patience = Some(Instant::now() + self.patience);
                }
                match (&replies[0], replies.get(1)) {
                    (Reply::Error(text), _) if is_transient(text) => {}
                    (Reply::Error(text), _) if is_release && has_code(text, "MISCONF") => {}
                    (_, Some(Reply::Error(text))) if is_transient(text) => attempt.has_lost = true, // the reply to WAIT
                    _ => return Ok(replies),
                }
            } else {
                attempt.has_lost = true;
            }
            attempt.pause()?;
        }
    }

    /// Ends every hold and wait that an acquisition may have left behind. Runs on a thread, so the call can return at
    /// once. If the program has named the owner, the call waits for the reply, because a late release would end the
    /// owner's next tenure.
    fn give_up(self: &Arc<Self>, key: &str, owner: &str, is_named: bool) {
        let (lockward, request) = (Arc::clone(self), format!("LOCK.RELEASE {key} {owner} HOLDS 0"));
        if !self.has(Defect::NoGiveUp) {
            let giving_up = thread::spawn(move || {
                lockward.exchange_shared(&[request], Duration::from_millis(200), None);
            });
            if is_named {
                let _ = giving_up.join();
            }
        }
    }

    // Acquisition.

    fn new_owner(&self) -> String {
        format!("{}:{}", self.process, self.tenures.fetch_add(1, Ordering::SeqCst) + 1)
    }

    fn acquire(self: &Arc<Self>, name: &str, mut request: Request, call: &Call) -> Result<Arc<Tenure>, End> {
        let limit = request.wait.filter(|wait| !wait.is_zero());
        let mut attempt = self.attempt(call, limit);
        let began = Instant::now();
        if !self.has(Defect::UnsortedKeys) {
            request.keys.sort();
        }
        let granted = if let [key] = &*request.keys {
            let owner = request.owner.clone().unwrap_or_else(|| self.new_owner());
            self.acquire_one(key, &owner, 1, &request, &mut attempt).map(|granted| vec![granted])
        } else {
            loop {
                match self.acquire_several(&request, &mut attempt) {
                    // A key was lost before all keys were granted.
                    Err(End::Lost) if request.wait != Some(Duration::ZERO) => attempt.held.clear(),
                    ended => break ended,
                }
            }
        };
        let granted = granted?;
        if let Some(late) = locked(&self.late_release).take() {
            self.ask(&[late], &mut attempt)?;
        }
        let hold_limit = request.hold_limit.map(|limit| began + limit);
        Ok(self.hold(name, granted, &request, hold_limit))
    }

    /// Acquires one key. Returns the key's part of the lock, the time when the client sent the request for the lease,
    /// and the lease.
    fn acquire_one(
        self: &Arc<Self>,
        key: &str,
        owner: &str,
        holds: u64,
        request: &Request,
        attempt: &mut Attempt<'_>,
    ) -> Result<(Part, Instant, u128), End> {
        let result = self.try_and_wait(key, owner, holds, request, attempt);
        let may_hold = match &result {
            // The last slice of a wait has no KEEP. So after the reply to the last slice, the owner has no place in the
            // queue.
            Err(End::Busy) | Err(End::Refused(_)) => attempt.has_lost,
            Err(_) => true,
            Ok(_) => false,
        };
        if may_hold {
            self.give_up(key, owner, request.owner.is_some());
        }
        result
    }

    fn try_and_wait(
        &self,
        key: &str,
        owner: &str,
        holds: u64,
        request: &Request,
        attempt: &mut Attempt<'_>,
    ) -> Result<(Part, Instant, u128), End> {
        let kind = spaced(&request.kind);
        let mut lease = request.lease;
        let mut is_second = false;
        loop {
            let px = lease.map(|lease| format!(" PX {lease}")).unwrap_or_default();
            let mut sent;
            let mut owner = owner.to_owned();
            let replies = loop {
                let acquire = format!("LOCK.ACQUIRE {key} {owner}{px} HOLDS {holds}{kind}");
                let wait = request.replicas.as_ref().map(|(count, within)| format!("WAIT {count} {within}"));
                let requests: Vec<String> = [acquire].into_iter().chain(wait).collect();
                sent = Instant::now();
                if !self.has(Defect::NewOwner) {
                    break self.ask(&requests, attempt)?;
                }
                match self.exchange_shared(&requests, self.response_limit, Some(attempt)) {
                    Some(replies) => break replies,
                    None => owner = self.new_owner(),
                }
            };
            match &replies[0] {
                Reply::Array(grant) => {
                    let (token, lease) =
                        (grant[0].int(), lease.unwrap_or_else(|| grant[2].int().unsigned_abs().into()));
                    self.check_replicas(request, replies.get(1))?;
                    return Ok((Part { key: key.to_owned(), owner, token }, sent, lease));
                }
                Reply::Error(text) if largest_lease(text).is_some() && !is_second => {
                    is_second = true;
                    lease = largest_lease(text);
                }
                Reply::Error(text) => return Err(End::Refused(text.clone())),
                Reply::Simple(text) => return Err(End::Other(format!("unexpected reply {text}"))),
                _ if request.wait == Some(Duration::ZERO) => return Err(End::Busy),
                _ => break,
            }
        }
        // If a granted lease ends before the grant is confirmed, the call waits again.
        loop {
            let turn = locked(&self.turns).enter();
            let px = lease.map(|lease| format!(" PX {lease}")).unwrap_or_default();
            let try_again = format!("LOCK.ACQUIRE {key} {owner}{px} HOLDS {holds}{kind}");
            let polled = self.poll(&try_again, attempt, turn).transpose();
            let granted = polled.unwrap_or_else(|| self.wait(key, owner, holds, &kind, lease, attempt));
            locked(&self.turns).end(turn);
            let (token, sent, left) = granted?;
            let lease = lease.unwrap_or(left);
            let part = Part { key: key.to_owned(), owner: owner.to_owned(), token };
            if self.has(Defect::NoConfirm) {
                return Ok((part, sent, lease));
            }
            attempt.patience = Some(Instant::now() + self.patience);
            let confirm = format!("LOCK.RENEW {key} {owner} PX {lease} TOKEN {token} HOLDS {holds}{kind}");
            let wait = request.replicas.as_ref().map(|(count, within)| format!("WAIT {count} {within}"));
            let requests: Vec<String> = [confirm].into_iter().chain(wait).collect();
            let sent = Instant::now();
            let replies = self.ask(&requests, attempt)?;
            match &replies[0] {
                Reply::Error(text) if text.starts_with("NOTHELD") => {}
                Reply::Error(text) => return Err(End::Refused(text.clone())),
                _ => {
                    self.check_replicas(request, replies.get(1))?;
                    return Ok((part, sent, lease));
                }
            }
        }
    }

    fn check_replicas(&self, request: &Request, reply: Option<&Reply>) -> Result<(), End> {
        match (&request.replicas, reply) {
            (Some((count, _)), Some(Reply::Int(reached))) if *reached < count.parse().expect("a count") => {
                Err(End::Unreplicated)
            }
            _ => Ok(()),
        }
    }

    /// Waits on its own connection until the lock is granted. The client splits a long wait into short waits (slices).
    /// Returns the token, the time when the request was sent, and the lease.
    fn wait(
        &self,
        key: &str,
        owner: &str,
        holds: u64,
        kind: &str,
        lease: Option<u128>,
        attempt: &mut Attempt<'_>,
    ) -> Result<(i64, Instant, u128), End> {
        const SLICE: Duration = Duration::from_secs(10);
        attempt.patience = None;
        let limit = attempt.limit;
        if !self.has(Defect::NoWaitLimit) {
            attempt.limit = limit.map(|limit| limit + GRACE);
        } else {
            attempt.limit = None;
        }
        let mut connection = None;
        attempt.pause = Duration::ZERO;
        let result = loop {
            let left = limit.map_or(LONGEST_WAIT, |limit| limit.saturating_duration_since(Instant::now()));
            let is_last = left <= SLICE;
            let (slice, keep) = (left.min(SLICE).as_millis().max(1), !is_last && !self.has(Defect::NoKeep));
            let short = lease.map(|lease| format!(" PX {}", lease.min(3_000))).unwrap_or_default();
            let keep = if keep { format!(" KEEP {KEEP_MS}") } else { String::new() };
            let request =
                format!("LOCK.ACQUIRE {key} {owner}{short} BLOCK {slice}{keep} HOLDS {holds}{kind}");
            if let Some(end) = attempt.is_over() {
                break Err(end);
            }
            let sent = Instant::now();
            let mut used = connection.take().or_else(|| self.new_connection());
            let within = left.min(SLICE) + self.response_limit;
            let replies =
                used.as_mut().and_then(|used| self.exchange(used, &[request], within, Some(attempt)));
            match replies.as_deref() {
                Some([Reply::Array(grant)]) => {
                    attempt.has_heard = true;
                    locked(&self.idle).extend(used);
                    break Ok((grant[0].int(), sent, grant[2].int().unsigned_abs().into()));
                }
                Some([Reply::Error(text)]) if !is_transient(text) => break Err(End::Refused(text.clone())),
                Some([Reply::Error(_)]) | None => {
                    attempt.has_lost = true;
                    if let Err(end) = attempt.pause() {
                        break Err(end);
                    }
                }
                Some(_) => {
                    attempt.has_heard = true;
                    attempt.pause = Duration::ZERO;
                    connection = used;
                    if is_last {
                        locked(&self.idle).extend(connection);
                        break Err(End::Busy);
                    }
                }
            }
        };
        attempt.limit = limit;
        result
    }

    /// Waits until the call may open a connection for a wait. Meanwhile repeats the protocol's *try*, with pauses.
    /// Returns a grant, or `None` when the call may open a connection.
    fn poll(
        &self,
        request: &str,
        attempt: &mut Attempt<'_>,
        turn: u64,
    ) -> Result<Option<(i64, Instant, u128)>, End> {
        let mut pause = Duration::from_millis(50);
        let mut next_try = Instant::now() + pause;
        let is_fair = !self.has(Defect::LastFirst);
        loop {
            if locked(&self.turns).has_begun(turn, self.waiting_connections, is_fair) {
                return Ok(None);
            }
            attempt.pause = TICK;
            attempt.pause()?;
            if Instant::now() < next_try {
                continue;
            }
            next_try = Instant::now() + pause;
            pause = (2 * pause).min(Duration::from_secs(1));
            let sent = Instant::now();
            match self.exchange_shared(&[request.to_owned()], self.response_limit, Some(attempt)).as_deref() {
                Some([Reply::Array(grant)]) => {
                    return Ok(Some((grant[0].int(), sent, grant[2].int().unsigned_abs().into())));
                }
                Some([Reply::Error(text)]) if !is_transient(text) => return Err(End::Refused(text.clone())),
                Some(_) => {}
                None => attempt.has_lost = true,
            }
        }
    }

    fn acquire_several(
        self: &Arc<Self>,
        request: &Request,
        attempt: &mut Attempt<'_>,
    ) -> Result<Vec<(Part, Instant, u128)>, End> {
        let owners: Vec<String> = request.keys.iter().map(|_| self.new_owner()).collect();
        let give_all_up =
            || request.keys.iter().zip(&owners).for_each(|(key, owner)| self.give_up(key, owner, false));
        let (kind, px) =
            (spaced(&request.kind), request.lease.map(|lease| format!(" PX {lease}")).unwrap_or_default());
        let requests: Vec<String> = request
            .keys
            .iter()
            .zip(&owners)
            .map(|(key, owner)| format!("LOCK.ACQUIRE {key} {owner}{px} HOLDS 1{kind}"))
            .chain(request.replicas.as_ref().map(|(count, within)| format!("WAIT {count} {within}")))
            .collect();
        let sent = Instant::now();
        let replies = self.ask(&requests, attempt).inspect_err(|_| give_all_up())?;
        let part =
            |(key, owner): (&String, &String), token| Part { key: key.clone(), owner: owner.clone(), token };
        let granted: Option<Vec<_>> = request
            .keys
            .iter()
            .zip(&owners)
            .zip(&replies)
            .map(|(names, reply)| match reply {
                Reply::Array(grant) => {
                    let lease = request.lease.unwrap_or_else(|| grant[2].int().unsigned_abs().into());
                    Some((part(names, grant[0].int()), sent, lease))
                }
                _ => None,
            })
            .collect();
        if let Some(granted) = granted {
            let wait = replies.get(request.keys.len());
            return self.check_replicas(request, wait).map(|()| granted).inspect_err(|_| give_all_up());
        }
        for ((key, owner), reply) in request.keys.iter().zip(&owners).zip(&replies) {
            if let Reply::Array(grant) = reply {
                let release = format!("LOCK.RELEASE {key} {owner} ALL TOKEN {}", grant[0].int());
                self.exchange_shared(&[release], self.response_limit, None);
            }
        }
        if let Some(Reply::Error(text)) = replies.iter().find(|reply| matches!(reply, Reply::Error(_))) {
            return Err(End::Refused(text.clone()));
        }
        if request.wait == Some(Duration::ZERO) {
            return Err(End::Busy);
        }
        let mut granted: Vec<(Part, Instant, u128)> = Vec::new();
        let mut result = Ok(());
        // The client renews the earlier keys while it waits for the next keys.
        let kept = Request { no_renewal: false, ..request.clone() };
        for (key, owner) in request.keys.iter().zip(&owners) {
            match self.acquire_one(key, owner, 1, request, attempt) {
                Ok(one) => {
                    attempt.held.push(self.hold(&format!("{key} {owner}"), vec![one.clone()], &kept, None));
                    granted.push(one);
                }
                Err(end) => {
                    result = Err(end);
                    break;
                }
            }
        }
        for (tenure, one) in attempt.held.iter().zip(&mut granted) {
            locked(&self.held).remove(&tenure.name);
            let mut state = locked(&tenure.state);
            if state.phase != Phase::Held {
                result = Err(End::Lost);
            }
            state.phase = Phase::HandedOver;
            one.1 = state.renewed;
        }
        result.map(|()| granted).inspect_err(|_| give_all_up())
    }

    fn reenter(self: &Arc<Self>, name: &str, options: &[&str], call: &Call) -> Result<String, End> {
        let tenure = self.tenure(name)?;
        let part = &tenure.parts[0];
        let mut request = Request::parse(&[&[&*part.key], options].concat());
        let holds = {
            let state = locked(&tenure.state);
            request.lease = Some(state.lease);
            request.kind = state.kind.clone();
            state.holds + 1
        };
        let mut attempt = self.attempt(call, request.wait.filter(|wait| !wait.is_zero()));
        let (part, sent, lease) = self.acquire_one(&part.key, &part.owner, holds, &request, &mut attempt)?;
        let mut state = locked(&tenure.state);
        state.holds = holds;
        state.end = state.end.max(end(sent, lease));
        Ok(format!("held {}", part.token))
    }

    fn resume(self: &Arc<Self>, name: &str, handle: &str, call: &Call) -> Result<String, End> {
        let fields: Vec<&str> = handle.split('|').collect();
        let [key, owner, token, holds, lease, kind] = *fields else {
            return Err(End::Other("no handle".into()));
        };
        let lease = lease.parse().expect("a lease");
        let part = Part { key: key.into(), owner: owner.into(), token: token.parse().expect("a token") };
        let request = Request { kind: kind.replace('+', " "), ..Request::default() };
        let tenure = self.hold(name, vec![(part, Instant::now(), lease)], &request, None);
        locked(&tenure.state).holds = holds.parse().expect("holds");
        self.renew(name, None, call)?;
        Ok(format!("held {token}"))
    }

    // Held locks.

    /// Begins to renew and watch a lock.
    fn hold(
        &self,
        name: &str,
        granted: Vec<(Part, Instant, u128)>,
        request: &Request,
        hold_limit: Option<Instant>,
    ) -> Arc<Tenure> {
        let first = granted.iter().map(|granted| granted.1).min().expect("a key");
        let (lease, kind) = (granted[0].2, request.kind.clone());
        let sent = if self.has(Defect::LateLease) { Instant::now() } else { first };
        let tenure = Arc::new(Tenure {
            name: name.to_owned(),
            parts: granted.into_iter().map(|granted| granted.0).collect(),
            slow_lost: request.slow_lost,
            renews: AtomicBool::new(!request.no_renewal && !self.has(Defect::NeverRenews)),
            hold_limit,
            state: Mutex::new(State {
                other_kind: kind.clone(),
                kind,
                lease,
                holds: 1,
                end: end(sent, lease),
                renewed: first,
                phase: Phase::Held,
            }),
        });
        locked(&self.held).insert(name.to_owned(), Arc::clone(&tenure));
        tenure
    }

    /// Ends locks whose leases are over.
    fn watch_all(&self) {
        let delay = Duration::from_millis(if self.has(Defect::LateLoss) { 500 } else { 0 });
        loop {
            thread::sleep(TICK);
            let held: Vec<Arc<Tenure>> = locked(&self.held).values().cloned().collect();
            for tenure in held {
                let end = locked(&tenure.state).end;
                let end = tenure.hold_limit.map_or(end, |limit| limit.min(end));
                if Instant::now() >= end + delay {
                    tenure.lose();
                }
            }
        }
    }

    /// Renews all locks that are due, in one pipeline.
    fn renew_all(self: Arc<Self>) {
        loop {
            thread::sleep(TICK);
            // Detects that the server has closed a shared connection.
            let cut = locked(&self.idle).iter().any(|idle| idle.has_ended());
            if cut {
                locked(&self.idle).clear();
                *locked(&self.renewals) = true;
            }
            let all_now = std::mem::take(&mut *locked(&self.renewals));
            let held: Vec<Arc<Tenure>> = locked(&self.held).values().cloned().collect();
            let due = |tenure: &&Arc<Tenure>| {
                let state = locked(&tenure.state);
                let third = Duration::from_millis(u64::try_from(state.lease / 3).expect("a lease"));
                state.phase == Phase::Held
                    && tenure.renews.load(Ordering::SeqCst)
                    && tenure.hold_limit.is_none_or(|limit| state.end < limit)
                    && (all_now || state.renewed.elapsed() >= third)
            };
            let due: Vec<&Arc<Tenure>> = held.iter().filter(due).collect();
            if due.is_empty() {
                continue;
            }
            // The same pipeline also renews the locks for which a quarter of the lease has passed.
            let soon = |tenure: &&Arc<Tenure>| {
                let state = locked(&tenure.state);
                state.phase == Phase::Held
                    && tenure.renews.load(Ordering::SeqCst)
                    && state.renewed.elapsed().as_millis() >= state.lease / 4
            };
            let due: Vec<&Arc<Tenure>> = if all_now { due } else { held.iter().filter(soon).collect() };
            let size = if self.has(Defect::RenewsOneByOne) { 1 } else { due.len() };
            for due in due.chunks(size.max(1)) {
                self.renew_these(due);
            }
        }
    }

    fn renew_these(&self, due: &[&Arc<Tenure>]) {
        let requests: Vec<(usize, String)> = due
            .iter()
            .enumerate()
            .flat_map(|(place, tenure)| tenure.renewals().into_iter().map(move |request| (place, request)))
            .collect();
        let lines: Vec<String> = requests.iter().map(|(_, line)| line.clone()).collect();
        let sent = Instant::now();
        let limit = due.iter().map(|tenure| locked(&tenure.state).lease / 6).min().expect("a lock");
        let limit = Duration::from_millis(u64::try_from(limit).expect("a lease"));
        let Some(replies) = self.exchange_shared(&lines, limit, None) else {
            *locked(&self.renewals) = true;
            thread::sleep(TICK * 10);
            return;
        };
        for (place, tenure) in due.iter().enumerate() {
            let mut own = requests
                .iter()
                .zip(&replies)
                .filter(|(request, _)| request.0 == place)
                .map(|(_, reply)| reply);
            let is_denied = |reply: &Reply| {
                matches!(reply, Reply::Error(text)
                    if ["NOTHELD", "HOLDS", "WRONGTYPE"].iter().any(|word| text.starts_with(word)))
            };
            if own.clone().any(is_denied) {
                tenure.lose();
            } else if own
                .clone()
                .any(|reply| matches!(reply, Reply::Error(text) if text.starts_with("LIMIT")))
            {
                locked(&tenure.state).name_other_kind();
            } else if own.all(|reply| matches!(reply, Reply::Int(_))) {
                let mut state = locked(&tenure.state);
                state.renewed = sent;
                state.end = end(sent, state.lease);
            }
        }
    }

    fn renew(&self, name: &str, kind: Option<String>, call: &Call) -> Result<String, End> {
        let tenure = self.tenure(name)?;
        if locked(&tenure.state).phase != Phase::Held {
            return Err(End::Lost);
        }
        if let Some(kind) = &kind {
            let mut state = locked(&tenure.state);
            state.other_kind = std::mem::replace(&mut state.kind, kind.clone());
        }
        for request in tenure.renewals() {
            let sent = Instant::now();
            match &self.ask(&[request], &mut self.attempt(call, None))?[0] {
                Reply::Error(text) if text.starts_with("NOTHELD") => {
                    tenure.lose();
                    return Err(End::Lost);
                }
                Reply::Error(text) => {
                    if kind.is_some() {
                        locked(&tenure.state).name_other_kind();
                    }
                    return Err(End::Refused(text.clone()));
                }
                Reply::Int(_) => {
                    let mut state = locked(&tenure.state);
                    state.renewed = sent;
                    state.end = end(sent, state.lease);
                }
                reply => return Err(End::Other(format!("unexpected reply {reply:?}"))),
            }
        }
        Ok("ok".to_owned())
    }

    fn release(&self, name: &str, call: &Call) -> Result<String, End> {
        let tenure = self.tenure(name)?;
        let (lease_end, holds) = {
            let mut state = locked(&tenure.state);
            if state.phase != Phase::Held || Instant::now() >= state.end {
                return Err(End::Lost);
            }
            if state.holds == 1 {
                state.phase = Phase::Released;
            }
            state.holds -= 1;
            (state.end, state.holds)
        };
        let mut result = Ok("ok".to_owned());
        for Part { key, owner, token } in &tenure.parts {
            let what = if holds == 0 { "ALL".to_owned() } else { format!("HOLDS {holds}") };
            let request = format!("LOCK.RELEASE {key} {owner} {what} TOKEN {token}");
            let mut attempt = self.attempt(call, None);
            attempt.limit = Some(lease_end);
            if self.has(Defect::OneRelease) {
                attempt.patience = Some(Instant::now() + self.response_limit / 2);
                attempt.pause = self.response_limit;
            }
            let is_blind = self.has(Defect::BlindRelease);
            match self.ask(slice::from_ref(&request), &mut attempt) {
                Ok(replies) => match &replies[0] {
                    Reply::Error(text) if text.starts_with("NOTHELD") && (attempt.has_lost || is_blind) => {}
                    Reply::Error(text) if text.starts_with("NOTHELD") => result = Err(End::Lost),
                    Reply::Error(text) => result = Err(End::Refused(text.clone())),
                    Reply::Int(_) => {}
                    reply => result = Err(End::Other(format!("unexpected reply {reply:?}"))),
                },
                Err(_) if Instant::now() >= lease_end => {}
                Err(end) => {
                    if self.has(Defect::LateRelease) {
                        *locked(&self.late_release) = Some(request);
                    }
                    result = Err(end);
                }
            }
        }
        result
    }

    fn guarded(&self, name: &str, command: &str, call: &Call) -> Result<String, End> {
        let tenure = self.tenure(name)?;
        let Part { key, token, .. } = &tenure.parts[0];
        let request = format!("LOCK.GUARD {key} {token} {command}");
        for attempt in 0..2 {
            if locked(&tenure.state).phase != Phase::Held {
                return Err(End::Lost);
            }
            let limit = self.response_limit.min(self.patience);
            let mut replies = self.exchange_shared(std::slice::from_ref(&request), limit, None);
            if replies.is_none() && self.has(Defect::RepeatsGuarded) {
                replies = self.exchange_shared(std::slice::from_ref(&request), limit, None);
            }
            match replies.as_deref() {
                None => return Err(End::Unreachable),
                Some([Reply::Error(text)]) if text.starts_with("FENCED") && attempt == 0 => {
                    self.renew(name, None, call)?;
                }
                Some([Reply::Error(text)]) => return Err(End::Refused(text.clone())),
                Some([Reply::Int(number)]) => return Ok(format!("reply {number}")),
                Some([Reply::Simple(text)]) => return Ok(format!("reply {text}")),
                Some([Reply::Bulk(bytes)]) => return Ok(format!("reply {}", String::from_utf8_lossy(bytes))),
                Some(_) => return Ok("reply".to_owned()),
            }
        }
        Err(End::Lost)
    }

    fn lead(self: &Arc<Self>, name: &str, request: Request, call: &Call) -> Result<String, End> {
        loop {
            let tenure = match self.acquire(name, request.clone(), call) {
                Ok(tenure) => tenure,
                Err(End::Unreachable) => continue,
                Err(end) => return Err(end),
            };
            println!("event leading {name} {}", tenure.tokens());
            loop {
                thread::sleep(TICK);
                if locked(&tenure.state).phase == Phase::Lost {
                    println!("event deposed {name}");
                    break;
                }
                if !tenure.renews.load(Ordering::SeqCst) {
                    return self.release(name, call);
                }
            }
        }
    }
}

impl State {
    /// The server refuses the kind that the renewals name.
    fn name_other_kind(&mut self) {
        std::mem::swap(&mut self.kind, &mut self.other_kind);
    }
}

impl Tenure {
    fn tokens(&self) -> String {
        self.parts.iter().map(|part| part.token.to_string()).collect::<Vec<_>>().join(",")
    }

    fn renewals(&self) -> Vec<String> {
        let state = locked(&self.state);
        let (holds, kind) = (state.holds, spaced(&state.kind));
        let left =
            self.hold_limit.map_or(Duration::MAX, |limit| limit.saturating_duration_since(Instant::now()));
        let lease = state.lease.min(left.as_millis().max(1));
        let renewal = |Part { key, owner, token }: &Part| {
            format!("LOCK.RENEW {key} {owner} PX {lease} TOKEN {token} HOLDS {holds}{kind}")
        };
        self.parts.iter().map(renewal).collect()
    }

    /// Reports once that the lock is lost.
    fn lose(&self) {
        let mut state = locked(&self.state);
        if state.phase == Phase::Held {
            state.phase = Phase::Lost;
            // A name with a space belongs to a key in an unfinished acquisition of several keys. The program does not
            // know of this tenure, so the client reports no loss.
            if !self.name.contains(' ') {
                println!("event lost {}", self.name);
            }
            let slow = self.slow_lost;
            thread::spawn(move || thread::sleep(slow));
        }
    }
}

/// The end, on the local clock, of a lease that was requested at `sent`.
fn end(sent: Instant, lease: u128) -> Instant {
    let lease = Duration::from_millis(u64::try_from(lease).unwrap_or(u64::MAX / 2).min(u64::MAX / 4));
    sent + lease.mul_f64(0.999).saturating_sub(Duration::from_millis(1))
}
