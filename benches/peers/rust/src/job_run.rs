//! When the clients of a job work, and how they ask for the lock.

use lockward_bench::peers::job::Job;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The clients connect during the warm-up too.
const WARM_UP: Duration = Duration::from_millis(1_500);
/// How long a client holds a shared lock.
pub const HOLD: Duration = Duration::from_millis(1);

/// A job that is running.
#[derive(Clone, Copy, Debug)]
pub struct JobRun {
    pub job: Job,
    begin: Instant,
    end: Instant,
    /// When the counted time begins, in milliseconds since 1970.
    pub began_unix_ms: f64,
}

impl JobRun {
    /// A job that counts for `seconds`, after a warm-up that begins now.
    pub fn new(job: Job, seconds: u64) -> Self {
        let begin = Instant::now() + WARM_UP;
        let began = (SystemTime::now() + WARM_UP).duration_since(UNIX_EPOCH).unwrap_or_default();
        let end = begin + Duration::from_secs(seconds);
        Self { job, begin, end, began_unix_ms: began.as_secs_f64() * 1e3 }
    }

    /// Whether the job has ended.
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
