//! Runs a world with clients that use `lockward-client`.
//!
//! A belief is a span in which a client believes that it holds a lock. The checks treat beliefs like grants of the
//! server: no two beliefs may overlap, and their tokens must grow. When the workers have ended, no lock and no waiter
//! may remain on the servers.

use crate::run::Plan;
use crate::world::World;
use lockward_checker::bounds::Bounds;
use lockward_checker::checker;
use lockward_checker::history::History;
use lockward_tests::eventually;
use std::fmt::Write as _;

impl Plan {
    /// Runs the plan with clients that use `lockward-client`. Returns a summary.
    ///
    /// # Errors
    /// A report of the violations.
    ///
    /// # Panics
    /// If a server does not start or stop, or the client breaks a promise.
    pub fn run_through_client(self) -> Result<String, String> {
        let world = self.world.start();
        let url = world.url();
        let mut most = 0;
        let (world, history) = self.record(world, Some(url), |world, nemesis| {
            most = most.max(connections(world));
            if nemesis.random.percent(20) {
                nemesis.stop_clients();
            } else {
                world.fault(nemesis);
            }
        });
        for port in world.ports() {
            let mut observer = lockward_tests::Client::connect(port).expect("a connection");
            eventually("no lock and no waiter remains", || {
                observer.call("DBSIZE").int() == 0 && observer.call("LOCK.TOP").items().is_empty()
            });
        }
        self.check_beliefs(&history, most)
    }

    fn check_beliefs(&self, history: &History, most: i64) -> Result<String, String> {
        let bounds = Bounds { tolerance: 0, ..Bounds::default() };
        let mut violations = checker::each_token_has_one_owner(history, &bounds);
        if !self.world.wakes_primaries() {
            violations.extend(checker::tenures_never_overlap(history, &bounds));
            violations.extend(checker::tokens_grow_and_have_one_owner(history, &bounds));
        }
        let mut report = String::new();
        let (beliefs, faults) = (history.calls().count(), history.faults().count());
        let _ = write!(
            report,
            "client in {}: {beliefs} beliefs, {faults} faults, {most} connections at most, seed {}",
            self.world.name(),
            self.seed
        );
        if beliefs < 20 {
            let _ = write!(report, "\nTOO FEW BELIEFS");
            return Err(report);
        }
        if violations.is_empty() {
            return Ok(report);
        }
        let _ = write!(report, "\n{} VIOLATIONS", violations.len());
        for violation in violations.iter().take(3) {
            let _ = write!(report, "\n{}", violation.report(history));
        }
        Err(report)
    }
}

/// The number of connections to the primary, or 0 if the primary does not answer.
fn connections(world: &dyn World) -> i64 {
    let Ok(mut observer) = lockward_tests::Client::connect(world.port()) else { return 0 };
    let Ok(info) = observer.try_call("INFO clients") else { return 0 };
    let info = info.text();
    let count = info.lines().find_map(|line| line.strip_prefix("connected_clients:"));
    count.and_then(|count| count.parse().ok()).unwrap_or(0)
}
