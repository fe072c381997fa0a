//! Simulates clients, the server and the network in virtual time.

use crate::MS;
use crate::server::{LOCKS, Reply, Server};
use lockward_checker::client::{Action, Client, Workload};
use lockward_checker::history::{Call, Data, Fault, History, Line, Mode, Nanos, Operation};
use lockward_tests::Random;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The modes of tenures.
const MODES: [Mode; 4] = [Mode::EXCLUSIVE, Mode::SHARED, Mode::of_slots(3, 1), Mode::of_slots(4, 2)];
const CLIENTS: u32 = 6;
/// After this number of calls, clients start no new call.
const CALLS: usize = 250;

/// A scheduled event.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A client performs its next action.
    Act(usize),
    /// A call reaches the server.
    Arrive(usize),
    /// A lease, a wait or a kept place may end.
    Due,
    /// The server notices that the client of a call has disconnected.
    Disconnected(usize),
    /// A client reads a reply, or gives up.
    Answer(usize),
}

/// What happens to a call in the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Delivered,
    /// The server executes the call, but its reply is lost.
    ReplyLost,
    /// The server does not get the call.
    RequestLost,
    /// The server executes the call after the client gave up.
    Late,
}

#[derive(Debug)]
pub(crate) struct World {
    random: Random,
    server: Server,
    workload: Workload,
    clients: Vec<Client>,
    calls: Vec<(Call, Fate)>,
    rest: Vec<Line>,
    events: BinaryHeap<Reverse<(Nanos, u64, Event)>>,
    scheduled: u64,
    /// The time of the next [`Event::Due`].
    due: Option<Nanos>,
    /// The time in which the server is paused.
    pause: (Nanos, Nanos),
}

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = Random::from_seed(seed);
        let from = random.between(50, 1_000) * MS;
        let pause = (from, from + random.between(10, 100) * MS);
        let fault = Fault { name: "pause".to_owned(), client: None, start: pause.0, end: pause.1 };
        let mut world = Self {
            random,
            server: Server::new(),
            workload: Workload {
                keys: LOCKS.map(str::to_owned).into(),
                lease: 20 * MS..120 * MS,
                long_lease: 120 * MS..200 * MS,
                rest: 10 * MS..60 * MS,
                wait: 5 * MS..400 * MS,
                slice: 10 * MS..60 * MS,
                keep: 50 * MS..300 * MS,
                modes: MODES.to_vec(),
                careful: false,
                new_owner_each_tenure: false,
            },
            clients: (0..CLIENTS).map(Client::new).collect(),
            calls: Vec::new(),
            rest: vec![Line::Fault(fault)],
            events: BinaryHeap::new(),
            scheduled: 0,
            due: None,
            pause,
        };
        for client in 0..world.clients.len() {
            let at = world.random.between(0, 5 * MS);
            world.at(at, Event::Act(client));
        }
        world
    }

    pub(crate) fn run(mut self) -> History {
        let mut end = 0;
        while let Some(Reverse((now, _, event))) = self.events.pop() {
            end = now.max(end);
            let of_server = matches!(event, Event::Arrive(_) | Event::Due | Event::Disconnected(_));
            if of_server && self.pause.0 <= now && now < self.pause.1 {
                self.at(self.pause.1, event);
            } else {
                self.handle_event(now, event);
            }
        }
        let calls = self.calls.into_iter().map(|(call, ..)| Line::Call(call));
        let data = self.server.data().map(|(key, guarded, tokens)| {
            Line::Data(Data { key: key.to_owned(), guarded, tokens: tokens.to_vec(), start: end, end })
        });
        History { lines: calls.chain(self.rest).chain(data).collect() }
    }

    /// Schedules an event. Events at the same time happen in the order of scheduling.
    fn at(&mut self, at: Nanos, event: Event) {
        self.scheduled += 1;
        self.events.push(Reverse((at, self.scheduled, event)));
    }

    fn latency(&mut self) -> Nanos {
        self.random.between(MS / 20, MS)
    }

    fn handle_event(&mut self, now: Nanos, event: Event) {
        match event {
            Event::Act(client) if self.calls.len() < CALLS => self.act(now, client),
            Event::Act(_) => {}
            Event::Arrive(number) => self.arrive(now, number),
            Event::Due => {
                self.due = None;
                let replies = self.server.advance(now);
                self.answer(now, replies);
            }
            Event::Disconnected(number) => {
                let replies = self.server.disconnected(now, number);
                self.answer(now, replies);
            }
            Event::Answer(number) => {
                let client = usize::try_from(self.calls[number].0.client).unwrap_or(0);
                self.clients[client].handle_outcome(&self.calls[number].0, &mut self.random);
                let think = self.random.between(0, 5 * MS);
                self.at(now + think, Event::Act(client));
            }
        }
    }

    fn act(&mut self, now: Nanos, client: usize) {
        match self.clients[client].next(now, &self.workload, &mut self.random) {
            Action::Call(operation) => self.call(now, client, operation),
            Action::Pause(length) => {
                let whose = Some(self.clients[client].number);
                let end = now + length;
                let fault = Fault { name: "pause".to_owned(), client: whose, start: now, end };
                self.rest.push(Line::Fault(fault));
                self.at(end, Event::Act(client));
            }
            Action::Rest(length) => self.at(now + length, Event::Act(client)),
        }
    }

    fn call(&mut self, now: Nanos, at: usize, operation: Operation) {
        let client = self.clients[at].number;
        let number = self.calls.len();
        let (fate, end, arrival) = match self.random.between(0, 100) {
            0 => (Fate::ReplyLost, None, Some(now + self.latency())),
            1 => (Fate::RequestLost, Some(now + 20 * MS), None),
            2 => (Fate::Late, Some(now + 5 * MS), Some(now + self.random.between(5, 60) * MS)),
            _ => (Fate::Delivered, None, Some(now + self.latency())),
        };
        let call = Call::sent(client, 0, &self.clients[at].key, &self.clients[at].owner, operation, now);
        self.calls.push((Call { end, ..call }, fate));
        if let Some(end) = end {
            self.at(end, Event::Answer(number));
        }
        if let Some(arrival) = arrival {
            self.at(arrival, Event::Arrive(number));
        }
    }

    fn arrive(&mut self, now: Nanos, number: usize) {
        let (call, fate) = &self.calls[number];
        let fate = *fate;
        // The client of a late call gives up. The server notices this after a while, and ends the wait.
        let limit = call.wait_limit().filter(|_| fate != Fate::Late);
        let replies = self.server.handle_call(now, number, call, limit);
        if self.server.is_waiting(number) {
            self.calls[number].0.enqueued = Some(now);
            if fate == Fate::Late {
                self.at(now + 80 * MS, Event::Disconnected(number));
            }
        }
        self.answer(now, replies);
    }

    /// Sends the replies, and schedules the next time at which the server has something to do.
    fn answer(&mut self, now: Nanos, replies: Vec<Reply>) {
        for (number, outcome) in replies {
            let end = now + self.latency();
            let (call, fate) = &mut self.calls[number];
            match fate {
                Fate::Delivered => (call.end, call.outcome) = (Some(end), outcome),
                Fate::ReplyLost => call.end = Some(end),
                Fate::RequestLost | Fate::Late => continue,
            }
            self.at(end, Event::Answer(number));
        }
        if let Some(due) = self.server.due()
            && self.due.is_none_or(|scheduled| due < scheduled)
        {
            self.due = Some(due);
            self.at(due, Event::Due);
        }
    }
}
