//! Random requests of several clients, compared with a model of the grants and the wait queue.
//!
//! Each reply of the server must be the reply of the model. After each command, the server must show the same holders
//! and the same queue as the model. No lease ends and no wait has a limit, so nothing depends on the time.

use lockward_tests::{Client, Random, Reply, Server, eventually, rounds};
use std::collections::VecDeque;

const OWNERS: [&str; 6] = ["A", "B", "C", "D", "E", "F"];

/// A limit (0 for none) and a weight.
type Mode = (i64, i64);

/// The limit as a number for comparisons. SHARED, which has no limit, gets the largest number.
fn rank(slots: i64) -> i64 {
    if slots == 0 { i64::MAX } else { slots }
}

#[derive(Clone, Debug)]
struct Holder {
    owner: &'static str,
    holds: i64,
    mode: Mode,
}

#[derive(Clone, Debug)]
struct Request {
    owner: &'static str,
    slots: i64,
    weight: Option<i64>,
    /// The hold count that the option HOLDS names.
    holds: Option<i64>,
}

impl Request {
    fn mode(&self) -> Mode {
        (self.slots, self.weight.unwrap_or(1))
    }

    fn text(&self) -> String {
        let slots = if self.slots == 0 { "SHARED".into() } else { format!("SLOTS {}", self.slots) };
        let weight = self.weight.map_or(String::new(), |weight| format!("WEIGHT {weight}"));
        let holds = self.holds.map_or(String::new(), |holds| format!("HOLDS {holds}"));
        format!("lock {} {slots} {weight} {holds} PX 6000000", self.owner)
    }
}

/// A reply of the model or of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Told {
    Holds(i64),
    Number(i64),
    Busy,
    Error(&'static str),
}

#[derive(Debug, Default)]
struct Model {
    holders: Vec<Holder>,
    /// The waiting requests, each with the number of its connection.
    queue: VecDeque<(usize, Request)>,
    /// The replies to waiters, each with the number of the waiter's connection.
    told: Vec<(usize, Told)>,
}

impl Model {
    fn fits(&self, (slots, weight): Mode) -> bool {
        let sum = weight + self.holders.iter().map(|holder| holder.mode.1).sum::<i64>();
        self.holders.iter().all(|holder| sum <= rank(holder.mode.0)) && sum <= rank(slots)
    }

    fn holder(&mut self, owner: &str) -> Option<&mut Holder> {
        self.holders.iter_mut().find(|holder| holder.owner == owner)
    }

    /// The reply to a request if no other request waits before this request; `None` if the request must wait.
    fn admit(&mut self, request: &Request) -> Option<Told> {
        if let Some(known) = self.holder(request.owner) {
            let other_weight = request.weight.is_some_and(|weight| weight != known.mode.1);
            return Some(if rank(request.slots) < rank(known.mode.0) || other_weight {
                Told::Error("LIMIT")
            } else {
                match request.holds {
                    None => known.holds += 1,
                    Some(named) if named == known.holds || named == known.holds + 1 => known.holds = named,
                    Some(_) => return Some(Told::Error("HOLDS")),
                }
                Told::Holds(known.holds)
            });
        }
        if request.holds.is_some_and(|named| named != 1) {
            return Some(Told::Error("HOLDS"));
        }
        self.fits(request.mode()).then(|| {
            self.holders.push(Holder { owner: request.owner, holds: 1, mode: request.mode() });
            Told::Holds(1)
        })
    }

    /// Grants the lock to the first waiter in the queue, as long as this waiter fits beside the holders.
    fn serve(&mut self) {
        while let Some((client, request)) = self.queue.front().cloned() {
            let Some(told) = self.admit(&request) else { return };
            self.queue.pop_front();
            self.told.push((client, told));
            self.serve_waits_of(request.owner);
        }
    }

    /// Replies to the other waits of an owner that has just been granted the lock.
    fn serve_waits_of(&mut self, owner: &'static str) {
        while let Some(at) = self.queue.iter().position(|(_, request)| request.owner == owner) {
            let (client, request) = self.queue.remove(at).expect("a wait");
            let told = self.admit(&request).expect("an answer to a holder");
            self.told.push((client, told));
        }
    }

    /// Ends waits of an owner with the error SUPERSEDED: the waits whose HOLDS is larger than `more_than`.
    fn supersede(&mut self, owner: &str, more_than: i64) {
        let is_meant = |request: &Request| {
            request.owner == owner && request.holds.is_some_and(|named| named > more_than)
        };
        let (superseded, rest) =
            self.queue.drain(..).partition::<VecDeque<_>, _>(|(_, request)| is_meant(request));
        self.queue = rest;
        self.told.extend(superseded.into_iter().map(|(client, _)| (client, Told::Error("SUPERSEDED"))));
    }

    /// The reply to LOCK.ACQUIRE; `None` if the client waits. If the request has BLOCK, `waits` is the number of the
    /// client's connection.
    fn acquire(&mut self, request: &Request, waits: Option<usize>) -> Option<Told> {
        let first = self.queue.iter().position(|(_, other)| other.owner == request.owner);
        let own = first.filter(|_| request.holds.is_some());
        let holds_it = self.holder(request.owner).is_some();
        let is_behind = !self.queue.is_empty() && own != Some(0);
        let must_wait = !holds_it && is_behind && request.holds.is_none_or(|named| named == 1);
        let told = if must_wait { None } else { self.admit(request) };
        if let Some(told) = told {
            if matches!(told, Told::Holds(_)) && !holds_it {
                if let Some((before, _)) = own.and_then(|at| self.queue.remove(at)) {
                    self.told.push((before, Told::Error("SUPERSEDED")));
                }
                self.serve_waits_of(request.owner);
                self.serve();
            }
            return Some(told);
        }
        let Some(client) = waits else { return Some(Told::Busy) };
        match own {
            Some(at) => {
                let (before, _) = std::mem::replace(&mut self.queue[at], (client, request.clone()));
                self.told.push((before, Told::Error("SUPERSEDED")));
            }
            None => self.queue.push_back((client, request.clone())),
        }
        None
    }

    /// The reply to LOCK.RELEASE. `left` is the number of holds that remain.
    fn release(&mut self, owner: &str, left: Left) -> Told {
        let told = match (self.holder(owner), left) {
            (None, Left::Named(0)) => Told::Number(0),
            (None, _) => return Told::Error("NOTHELD"),
            (Some(known), left) => {
                known.holds = match left {
                    Left::OneLess => known.holds - 1,
                    Left::None => 0,
                    Left::Named(named) if named == known.holds || named + 1 == known.holds => named,
                    Left::Named(_) => return Told::Error("HOLDS"),
                };
                Told::Number(known.holds)
            }
        };
        self.holders.retain(|holder| holder.holds > 0);
        if let Left::Named(named) = left {
            self.supersede(owner, named);
        }
        self.serve();
        told
    }

    /// The reply to LOCK.RENEW; `None` if the reply is the fencing token, because the model has no tokens.
    fn renew(&mut self, owner: &str, slots: i64, weight: Option<i64>) -> Option<Told> {
        let Some(known) = self.holder(owner) else { return Some(Told::Error("NOTHELD")) };
        if rank(slots) < rank(known.mode.0) || weight.is_some_and(|weight| weight != known.mode.1) {
            return Some(Told::Error("LIMIT"));
        }
        known.mode.0 = slots;
        self.serve();
        None
    }

    fn leave(&mut self, client: usize) {
        self.queue.retain(|(other, _)| *other != client);
        self.serve();
    }

    fn delete(&mut self) {
        self.holders.clear();
        self.serve();
    }

    /// The holders and the queue of the model, in the form of [`shown`].
    fn shown(&self) -> (Vec<String>, Vec<String>) {
        let holder = |Holder { owner, holds, mode }: &Holder| format!("{owner} {holds} {mode:?}");
        let waiter = |(_, request): &(usize, Request)| format!("{} {:?}", request.owner, request.mode());
        (self.holders.iter().map(holder).collect(), self.queue.iter().map(waiter).collect())
    }
}

#[derive(Clone, Copy, Debug)]
enum Left {
    OneLess,
    None,
    Named(i64),
}

/// The holders and the queue of the server.
fn shown(client: &mut Client) -> (Vec<String>, Vec<String>) {
    let reply = client.call("LOCK.INFO lock HOLDERS 1000 WAITERS 1000");
    if reply.is_null() {
        return (Vec::new(), Vec::new());
    }
    let info = reply.info();
    let sum = info.holders.iter().map(|holder| holder.weight).sum::<i64>();
    let least = info.holders.iter().map(|holder| holder.slots).min_by_key(|slots| rank(*slots));
    assert_eq!(
        (info.weight, Some(info.slots), info.holding),
        (sum, least, info.holders.len() as i64),
        "{info:?}"
    );
    assert!(sum <= rank(info.slots), "{info:?}");
    let holders = info.holders.iter();
    let holders = holders
        .map(|holder| format!("{} {} {:?}", holder.owner, holder.holds, (holder.slots, holder.weight)));
    let queue = info.queue.unwrap().into_iter();
    let queue = queue.map(|waiter| format!("{} {:?}", waiter.owner, (waiter.slots, waiter.weight)));
    (holders.collect(), queue.collect())
}

fn told(reply: &Reply) -> Told {
    match reply {
        Reply::Array(_) => Told::Holds(reply.grant().holds),
        Reply::NullArray => Told::Busy,
        Reply::Int(number) => Told::Number(*number),
        Reply::Error(text) => {
            let known = ["LIMIT", "HOLDS", "NOTHELD", "SUPERSEDED"];
            Told::Error(
                known.into_iter().find(|word| text.starts_with(*word)).unwrap_or_else(|| panic!("{text}")),
            )
        }
        other => panic!("{other:?}"),
    }
}

fn random_request(random: &mut Random) -> Request {
    let (slots, weight) = match random.within(0..6) {
        0 | 1 => (0, None),
        2 => (1, None),
        3 => (random.within(1..6), None),
        _ => {
            let slots = random.within(1..9);
            (slots, Some(random.within(1..slots + 1)))
        }
    };
    let holds = if random.once_in(2) { Some(random.one_of(&[1, 1, 1, 2, 3])) } else { None };
    Request { owner: random.one_of(&OWNERS), slots, weight, holds }
}

#[test]
fn random_requests_are_answered_as_the_model_says() {
    let server = Server::start();
    let mut random = Random::new();
    let mut model = Model::default();
    let mut client = server.client();
    // The waiting connections, each with its number.
    let mut waiting: Vec<(usize, Client)> = Vec::new();
    let (mut longest, mut most) = (0, 0);
    for number in 0..rounds(1_500, 50_000) {
        let owner = random.one_of(&OWNERS);
        let (command, expected) = match random.within(0..20) {
            0..10 => {
                let request = random_request(&mut random);
                let waits = random.once_in(2).then_some(number);
                let block = if waits.is_some() { "BLOCK 0" } else { "" };
                let expected = model.acquire(&request, waits);
                if expected.is_none() {
                    let mut waiter = server.client();
                    waiter.ask(&format!("{} {block}", request.text()));
                    waiting.push((number, waiter));
                    (String::new(), None)
                } else {
                    (format!("LOCK.ACQUIRE {} {block}", request.text()), expected)
                }
            }
            10..16 => {
                let holder = model.holders.first().map_or(owner, |holder| holder.owner);
                let owner = random.one_of(&[owner, holder]);
                let named = random.within(0..3);
                let (text, left) = random.one_of(&[
                    (String::new(), Left::OneLess),
                    ("ALL".into(), Left::None),
                    (format!("HOLDS {named}"), Left::Named(named)),
                ]);
                (format!("LOCK.RELEASE lock {owner} {text}"), Some(model.release(owner, left)))
            }
            16 | 17 => {
                let Request { owner, slots, weight, .. } = random_request(&mut random);
                let words = Request { owner, slots, weight, holds: None }.text();
                (format!("LOCK.RENEW {words}"), model.renew(owner, slots, weight))
            }
            18 if !waiting.is_empty() => {
                let at = usize::try_from(random.number()).unwrap_or(0) % waiting.len();
                let (number, gone) = waiting.swap_remove(at);
                model.leave(number);
                drop(gone);
                (String::new(), None)
            }
            19 if random.once_in(5) => {
                model.delete();
                ("DEL lock".into(), None)
            }
            _ => continue,
        };
        if !command.is_empty() {
            let reply = client.call(command.as_str());
            match expected {
                Some(expected) => assert_eq!(told(&reply), expected, "{number}: {command}"),
                None => drop(reply.int()),
            }
        }
        let expected = model.shown();
        let mut seen = (Vec::new(), Vec::new());
        eventually(&format!("{number}: {command}: {expected:?}"), || {
            seen = shown(&mut client);
            seen == expected
        });
        for (number, reply) in model.told.drain(..) {
            let Some(at) = waiting.iter().position(|(other, _)| *other == number) else { continue };
            let (_, mut waiter) = waiting.swap_remove(at);
            assert_eq!(told(&waiter.reply()), reply, "{number}");
        }
        (longest, most) = (longest.max(expected.1.len()), most.max(expected.0.len()));
    }
    assert!(waiting.iter_mut().all(|(_, waiter)| waiter.has_no_reply()));
    assert!(longest > 3 && most > 2, "a queue of {longest}, {most} holders");
}
