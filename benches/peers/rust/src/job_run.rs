//! When the clients of a job work, and how they ask for the lock.

use lockward_bench::peers::job::Job;
use std::time::{Duration, Instant, UNIX_EPOCH};

/// How long a client holds a shared lock.
pub const HOLD: Duration = Duration::from_millis(1);

#[derive(Clone, Copy, Debug)]
pub struct JobRun {
    pub job: Job,
    begin: Instant,
    end: Instant,
}

impl JobRun {
    /// A job that begins to count at this time, in milliseconds since 1970, and counts for `seconds`.
    pub fn new(job: Job, begin: u64, seconds: u64) -> Self {
        let since_1970 = UNIX_EPOCH.elapsed().unwrap_or_default();
        let begin = Instant::now() + Duration::from_millis(begin).saturating_sub(since_1970);
        Self { job, begin, end: begin + Duration::from_secs(seconds) }
    }

    pub fn is_over(&self) -> bool {
        Instant::now() >= self.end
    }

    /// The key of a client's lock. The key differs from job to job, because several jobs run on one server.
    pub fn key(&self, client: usize) -> String {
        if self.job == Job::Uncontended { format!("own:{client}") } else { format!("all:{}", self.job) }
    }

    /// Microseconds since the counted time began, for each of these instants.
    pub fn tenure(&self, instants: [Instant; 3]) -> [i64; 3] {
        instants.map(|instant| {
            let micros = |time: Duration| i64::try_from(time.as_micros()).unwrap_or(i64::MAX);
            if instant < self.begin { -micros(self.begin - instant) } else { micros(instant - self.begin) }
        })
    }
}
