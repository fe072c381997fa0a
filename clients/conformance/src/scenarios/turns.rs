//! Several programs that acquire a lock in turns, while the suite checks that the holders' weights do not exceed the
//! lock's limit.

use crate::stage::Stage;
use crate::worker::Worker;
use lockward_tests::DEADLINE;
use std::time::Duration;

/// A program that takes turns.
struct Actor {
    worker: usize,
    name: String,
    keys: String,
    weight: u64,
    phase: Phase,
    grants: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Asked(u64),
    Held,
    Released(u64),
    Done,
}

/// The parameters of the turns.
pub(super) struct Turns<'t> {
    /// The keys. Each actor gets one element: the first actor the first element, and so on. An element may name several
    /// keys, separated by commas.
    pub(super) keys: &'t [&'t str],
    /// The options of each `acquire`.
    pub(super) options: &'t str,
    /// The limit of the lock. If the limit is not 1, each actor has a weight of 1 to 3.
    pub(super) limit: u64,
    /// The number of actors of each worker.
    pub(super) actors: usize,
    /// The number of acquisitions.
    pub(super) rounds: usize,
}

impl Turns<'_> {
    /// Lets all actors take turns. After each grant, calls `during` with the number of the acquisition. Returns the
    /// number of grants of each actor.
    #[track_caller]
    pub(super) fn play(
        &self,
        stage: &Stage,
        workers: &mut [Worker],
        mut during: impl FnMut(usize),
    ) -> Vec<usize> {
        let mut actors: Vec<Actor> = (0..workers.len() * self.actors)
            .map(|number| Actor {
                worker: number % workers.len(),
                name: format!("n{number}"),
                keys: self.keys[number % self.keys.len()].to_owned(),
                weight: if self.limit == 1 { 1 } else { 1 + number as u64 % 3 },
                phase: Phase::Done,
                grants: 0,
            })
            .collect();
        for actor in &mut actors {
            self.ask(actor, workers);
        }
        let (mut asked, mut acquired, mut held, mut latest) = (actors.len(), 0, 0, 0);
        while actors.iter().any(|actor| actor.phase != Phase::Done) {
            // A holder of a semaphore releases only when no grant has come for 20 ms. So as many actors as possible hold
            // the semaphore together.
            let is_any_held = actors.iter().any(|actor| actor.phase == Phase::Held);
            let limit = if is_any_held { Duration::from_millis(20) } else { DEADLINE };
            let came = stage.log.wait(limit, || {
                actors.iter().enumerate().find_map(|(place, actor)| {
                    let reply = workers[actor.worker].reply_within(actor.phase.awaited()?, Duration::ZERO)?;
                    Some((place, reply.text))
                })
            });
            let has_come = came.is_some();
            assert!(has_come || is_any_held, "no actor is granted the lock any more");
            if let Some((place, reply)) = came {
                let actor = &mut actors[place];
                if let Phase::Released(_) = actor.phase {
                    assert_eq!(reply, "ok", "{} releases", actor.name);
                    actor.phase = Phase::Done;
                    if asked < self.rounds {
                        asked += 1;
                        self.ask(actor, workers);
                    }
                } else {
                    let tokens = reply.strip_prefix("held ");
                    let tokens =
                        tokens.unwrap_or_else(|| panic!("{} is not granted the lock: {reply:?}", actor.name));
                    actor.phase = Phase::Held;
                    held += actor.weight;
                    assert!(
                        held <= self.limit,
                        "a weight of {held} is held at the same time, and the limit is {}",
                        self.limit
                    );
                    if self.limit == 1 && self.keys.len() == 1 {
                        let token: i64 = tokens.parse().expect("a token");
                        assert!(token > latest, "token {token} comes after {latest}");
                        latest = token;
                    }
                    actor.grants += 1;
                    during(acquired);
                    acquired += 1;
                }
            }
            if self.limit == 1 || !has_come {
                for actor in actors.iter_mut().filter(|actor| actor.phase == Phase::Held) {
                    held -= actor.weight;
                    let id = workers[actor.worker].send(&format!("release {}", actor.name));
                    actor.phase = Phase::Released(id);
                }
            }
        }
        assert_eq!(acquired, self.rounds);
        actors.iter().map(|actor| actor.grants).collect()
    }

    fn ask(&self, actor: &mut Actor, workers: &mut [Worker]) {
        let weight = if self.limit == 1 { String::new() } else { format!(" weight={}", actor.weight) };
        let command = format!("acquire {} {} {}{weight}", actor.name, actor.keys, self.options);
        actor.phase = Phase::Asked(workers[actor.worker].send(&command));
    }
}

impl Phase {
    /// The ID of the command without a reply, if there is one.
    const fn awaited(self) -> Option<u64> {
        match self {
            Self::Asked(id) | Self::Released(id) => Some(id),
            Self::Held | Self::Done => None,
        }
    }
}
