//! The worlds: the servers, their faults, and the promises that hold in spite of these faults.

mod alone;
mod clustered;
mod cut_off;
mod failover;
mod name;
mod nemesis;
mod sentinels;

pub(crate) use name::WorldName;
pub(crate) use nemesis::{Nemesis, World};

impl WorldName {
    /// Starts the servers of the world.
    pub(crate) fn start(self) -> Box<dyn World> {
        match self {
            Self::Alone | Self::Clocks | Self::Wiped => Box::new(alone::Alone::start(self)),
            Self::Failover => Box::new(failover::Failover::start()),
            Self::CutOff | Self::Lossy => Box::new(cut_off::CutOff::start(self)),
            Self::Sentinels => Box::new(sentinels::Watched::start()),
            Self::Cluster => Box::new(clustered::Clustered::start(&self.workload().keys)),
        }
    }
}
