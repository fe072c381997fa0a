//! Runs a world with clients that use `lockward-client`.
//!
//! The history has the [beliefs](crate::rust_client) of the clients. The checks treat beliefs like grants of the
//! server: no two beliefs may overlap, and their tokens must grow. When the workers have ended, no lock and no waiter
//! may remain on the servers.

use crate::run::Plan;
use lockward_checker::bounds::Bounds;
use lockward_checker::checker;
use lockward_tests::{Client, eventually};

impl Plan {
    /// Runs the plan with clients that use `lockward-client`. Returns a report, and whether no promise was broken.
    pub(crate) fn run_through_client(self) -> (String, bool) {
        let world = self.world.start();
        let url = world.url();
        let (world, history) = self.record(world, Some(url), |world, nemesis| {
            if nemesis.random.percent(20) {
                nemesis.stop_clients();
            } else {
                world.fault(nemesis);
            }
        });
        for port in world.ports() {
            let mut observer = Client::connect(port).expect("a connection");
            eventually("no lock and no waiter remains", || {
                observer.call("DBSIZE").int() == 0 && observer.call("LOCK.TOP").items().is_empty()
            });
        }
        let bounds = Bounds { tolerance: 0, ..Bounds::default() };
        let mut violations = checker::tenures_never_overlap(&history, &bounds);
        violations.extend(checker::tokens_grow_and_have_one_owner(&history, &bounds));
        let (beliefs, faults) = (history.calls().count(), history.faults().count());
        let (world, seed) = (self.world.name(), self.seed);
        let mut report = format!("client in {world}: {beliefs} beliefs, {faults} faults, seed {seed}");
        let is_enough = beliefs >= 20;
        if !is_enough {
            report += "\nTOO FEW BELIEFS";
        }
        for violation in violations.iter().take(3) {
            report += &format!("\n{}", violation.report(&history));
        }
        (report, is_enough && violations.is_empty())
    }
}
