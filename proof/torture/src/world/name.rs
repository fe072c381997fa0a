//! The names of the worlds, their workloads, and the promises that hold in them.

use clap::ValueEnum;
use lockward_checker::bounds::{Activity, Bounds};
use lockward_checker::checker;
use lockward_checker::client::Workload;
use lockward_checker::history::{History, Mode, Nanos};
use lockward_checker::violation::Violation;
use serde::{Deserialize, Serialize};
use std::time::Duration;

pub(super) const MS: Nanos = 1_000_000;

/// The modes of tenures. Clients use each lock with all modes.
const MODES: [Mode; 6] = [
    Mode::EXCLUSIVE,
    Mode::EXCLUSIVE,
    Mode::SHARED,
    Mode::of_slots(3, 1),
    Mode::of_slots(4, 2),
    Mode::of_slots(5, 3),
];

/// The quarantine in the worlds with a quarantine, except the worlds with Sentinels, which have a longer quarantine. No
/// lease in these worlds is longer than this time.
pub(super) const QUARANTINE: Nanos = 900 * MS;

type Check = fn(&History, &Bounds) -> Vec<Violation>;

/// A world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub(crate) enum WorldName {
    /// One server with an AOF. The faults kill and restart the server, or stop it, often for longer than a lease.
    Alone,
    /// One server whose wall clock is stepped.
    Clocks,
    /// One server without persistence, with a quarantine. The faults kill and restart the server.
    Wiped,
    /// A primary and its replica, with a quarantine. There are planned failovers, and failovers after the death of
    /// the primary.
    Failover,
    /// A primary and two replicas, with a quarantine. One replica misses grants and is promoted.
    CutOff,
    /// The world `CutOff` without a quarantine. Grants are lost.
    Lossy,
    /// A primary, two replicas and Sentinels, with a quarantine. The primary dies.
    Sentinels,
    /// A cluster of three primaries with a replica each. Slots move, and there are planned failovers.
    Cluster,
}

impl WorldName {
    /// The worlds for clients that use `lockward-client`.
    pub(crate) const THROUGH_CLIENT: [Self; 4] = [Self::Alone, Self::Wiped, Self::Sentinels, Self::Cluster];

    /// The name of the world on the command line.
    pub(crate) fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// The workload of the clients in this world.
    pub(crate) fn workload(self) -> Workload {
        let forgets = self.forgets();
        Workload {
            keys: ["orders", "stock", "mail", "index"].map(str::to_owned).into(),
            lease: 20 * MS..120 * MS,
            long_lease: if forgets { 300 * MS..QUARANTINE } else { 1_500 * MS..3_000 * MS },
            rest: 100 * MS..400 * MS,
            wait: 5 * MS..400 * MS,
            slice: 10 * MS..80 * MS,
            keep: 100 * MS..2_000 * MS,
            modes: MODES.to_vec(),
            careful: forgets,
            // A promoted replica that missed a release still has the tenure, and without a quarantine the owner of this
            // tenure could re-enter it.
            new_owner_each_tenure: self.loses_grants(),
        }
    }

    /// The bounds of the promises in this world. The required activity grows with the length of the run.
    pub(crate) fn bounds(self, length: Duration) -> Bounds {
        let seconds = usize::try_from(length.as_secs()).unwrap_or(usize::MAX);
        // With Sentinels, failovers take most of the time, so there is less activity.
        let seconds = if self == Self::Sentinels { seconds / 10 } else { seconds };
        // In a cluster, a call may take three requests, and two servers block while a key moves between them.
        let slowdown = if matches!(self, Self::Cluster) { 2 } else { 1 };
        let long = usize::from(length >= Duration::from_secs(10));
        Bounds {
            handoff: slowdown * 500 * MS,
            answer: slowdown * 1_000 * MS,
            settle: if self.forgets() { QUARANTINE + 1_000 * MS } else { 1_000 * MS },
            minimum: Activity::from([
                ("grants", 40 * seconds),
                ("hand-offs", 5 * seconds),
                ("lease ends", seconds),
                ("faults", seconds / 4),
                ("tenures beside another one", 2 * seconds),
                ("grants at a kept place", 2 * seconds),
                // In a short run, servers that forget are in quarantine most of the time. Such a run can end without a
                // stale write.
                ("stale plain writes", if self.forgets() { long } else { (seconds / 8).max(1) }),
                ("tenures renewed after a fault", if self.forgets() { long } else { 0 }),
            ]),
            ..Bounds::default()
        }
    }

    /// Checks a history for the promises of this world.
    pub(crate) fn check(self, history: &History, bounds: &Bounds) -> Vec<Violation> {
        if !self.forgets() {
            return checker::check(history, bounds);
        }
        let mut checks: Vec<Check> = vec![
            checker::tokens_grow_and_have_one_owner,
            checker::guarded_data_is_in_order,
            checker::enough_happened,
        ];
        if !self.loses_grants() {
            checks.push(checker::tenures_never_overlap);
        }
        // Sentinels may promote a replica at any time, and calls that are in progress at that time get no reply.
        if self != Self::Sentinels {
            checks.push(checker::every_call_is_answered);
        }
        if matches!(self, Self::Wiped | Self::Failover | Self::CutOff) {
            checks.push(checker::queue_order_is_grant_order);
            checks.push(checker::a_freed_lock_reaches_a_waiter);
            checks.push(checker::the_guard_is_right_between_faults);
            checks.push(checker::a_holder_can_renew);
        }
        // In worlds other than `Wiped`, a replica takes over. If the replica has missed a re-entry or a release, its
        // hold count differs from the count in the last reply.
        if self == Self::Wiped {
            checks.push(checker::hold_counts_add_up);
        }
        checks.iter().flat_map(|check| check(history, bounds)).collect()
    }

    /// Whether grants are lost in this world, so that two owners may hold a lock at the same time. A run without such
    /// an overlap proves nothing.
    pub(crate) const fn loses_grants(self) -> bool {
        matches!(self, Self::Lossy)
    }

    /// Whether a server can forget a grant in this world. Then clients are careful, and there is a quarantine except
    /// in `Lossy`.
    const fn forgets(self) -> bool {
        !matches!(self, Self::Alone | Self::Clocks | Self::Cluster)
    }
}
