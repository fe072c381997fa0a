//! Several programs that acquire one lock in turns, while the suite looks who holds it.

use crate::stage::Stage;
use crate::worker::Worker;
use lockward_tests::DEADLINE;
use std::time::Duration;

/// One of those that take turns.
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

/// How a lock is acquired in turns.
pub(super) struct Turns<'t> {
    /// The key, or several with commas, for each actor in turn.
    pub(super) keys: &'t [&'t str],
    /// The options of each `acquire`.
    pub(super) options: &'t str,
    /// How much may be held at once. An actor's weight is 1 to 3, if this is not 1.
    pub(super) limit: u64,
    /// How many actors each worker has.
    pub(super) actors: usize,
    /// How many acquisitions there are.
    pub(super) rounds: usize,
}

impl Turns<'_> {
    /// Lets all take turns. `during` is called while one holds the lock, with the number of the acquisition. Returns how often each
    /// actor got the lock.
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
            // Of a semaphore, several are held until no more comes.
            let is_any_held = actors.iter().any(|actor| actor.phase == Phase::Held);
            let limit = if is_any_held { Duration::from_millis(20) } else { DEADLINE };
            let came = stage.log().wait(limit, || {
                actors.iter().enumerate().find_map(|(place, actor)| {
                    let reply = workers[actor.worker].reply_within(actor.phase.awaited()?, Duration::ZERO)?;
                    Some((place, reply.text))
                })
            });
            let has_come = came.is_some();
            assert!(has_come || is_any_held, "nobody gets the lock any more");
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
                        tokens.unwrap_or_else(|| panic!("{} does not get the lock: {reply:?}", actor.name));
                    actor.phase = Phase::Held;
                    held += actor.weight;
                    assert!(held <= self.limit, "{held} are held at once, and at most {} may be", self.limit);
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
    /// The ID of the command that is not answered yet.
    const fn awaited(self) -> Option<u64> {
        match self {
            Self::Asked(id) | Self::Released(id) => Some(id),
            Self::Held | Self::Done => None,
        }
    }
}
