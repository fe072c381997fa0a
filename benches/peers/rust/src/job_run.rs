//! The data that the clients of a job share, and the answer.

use lockward_bench::peers::job::{Answer, Job, PERMITS};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const WARM_UP: Duration = Duration::from_millis(1_500);
/// How long a client holds a shared lock.
pub const HOLD: Duration = Duration::from_millis(1);

/// How a client asks to share the lock.
#[derive(Clone, Copy, Debug)]
pub enum Limit {
    /// The client holds the lock alone.
    Exclusive,
    /// All readers share the lock.
    Shared,
    /// The client takes this weight of a semaphore.
    Permits(u64),
}

/// How a client asks to share the lock in a job.
pub fn limit(job: Job, client: usize) -> Limit {
    match job {
        Job::Uncontended | Job::Contended => Limit::Exclusive,
        Job::Readers if job.is_writer(client) => Limit::Exclusive,
        Job::Readers => Limit::Shared,
        Job::Permits => Limit::Permits(1),
        Job::Weights => Limit::Permits(client as u64 % 3 + 1),
    }
}

/// The key of a client's lock. The key differs from job to job, because several jobs run on one server.
pub fn key(job: Job, client: usize) -> String {
    if job == Job::Uncontended { format!("own:{client}") } else { format!("all:{job}") }
}

/// A job that is running. All clients share its counters.
#[derive(Debug)]
pub struct JobRun {
    pub job: Job,
    begin: Instant,
    began: SystemTime,
    end: Instant,
    /// A client that holds an exclusive lock reads this number, yields, and writes the number plus 1. During the
    /// warm-up, the client uses `warm_up` in place of `counter`.
    counter: AtomicU64,
    warm_up: AtomicU64,
    last: AtomicUsize,
    handoffs: AtomicU64,
    /// The sum of the holders' weights, in the jobs with several holders.
    held: AtomicU64,
}

impl JobRun {
    /// A job that counts for `seconds`, after a warm-up that begins now.
    pub fn new(job: Job, seconds: u64) -> Self {
        let begin = Instant::now() + WARM_UP;
        Self {
            job,
            begin,
            began: SystemTime::now() + WARM_UP,
            end: begin + Duration::from_secs(seconds),
            counter: AtomicU64::new(0),
            warm_up: AtomicU64::new(0),
            last: AtomicUsize::new(usize::MAX),
            handoffs: AtomicU64::new(0),
            held: AtomicU64::new(0),
        }
    }

    /// Whether the job has ended.
    pub fn is_over(&self, instant: Instant) -> bool {
        instant >= self.end
    }

    /// Whether a grant at that time counts.
    pub fn counts(&self, granted: Instant) -> bool {
        (self.begin..self.end).contains(&granted)
    }

    /// A client begins to hold a shared lock. Counts the grant if the held weight stays within the limit.
    pub fn enter(&self, client: usize, is_counted: bool) {
        let (weight, allowed) = self.share(client);
        let held = self.held.fetch_add(weight, Ordering::Relaxed) + weight;
        if is_counted && held <= allowed {
            self.counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A client ends its hold of a shared lock.
    pub fn leave(&self, client: usize) {
        self.held.fetch_sub(self.share(client).0, Ordering::Relaxed);
    }

    /// Reads the number that each holder increments.
    pub fn read(&self, is_counted: bool) -> u64 {
        self.number(is_counted).load(Ordering::Relaxed)
    }

    /// Writes the number plus 1. `read` is what [`JobRun::read`] returned before the client yielded.
    pub fn write(&self, client: usize, read: u64, is_counted: bool) {
        self.number(is_counted).store(read + 1, Ordering::Relaxed);
        if self.last.swap(client, Ordering::Relaxed) != client && is_counted {
            self.handoffs.fetch_add(1, Ordering::Relaxed);
        }
    }

    const fn number(&self, is_counted: bool) -> &AtomicU64 {
        if is_counted { &self.counter } else { &self.warm_up }
    }

    /// How much of the lock's limit a client takes, and the limit.
    fn share(&self, client: usize) -> (u64, u64) {
        const READERS: u64 = u32::MAX as u64;
        match limit(self.job, client) {
            Limit::Exclusive => (READERS, READERS),
            Limit::Shared => (1, READERS),
            Limit::Permits(weight) => (weight, PERMITS),
        }
    }

    /// The answer. `waits_us` is how long each client's acquisitions took, in microseconds.
    pub fn answer(&self, version: &str, notes: &str, waits_us: Vec<Vec<u32>>) -> Answer {
        let counted = |number: &AtomicU64| number.load(Ordering::Relaxed);
        Answer {
            version: version.to_owned(),
            notes: notes.to_owned(),
            began_unix_ms: self
                .began
                .duration_since(UNIX_EPOCH)
                .map_or(0.0, |since| since.as_secs_f64() * 1e3),
            waits_us,
            counter: (self.job != Job::Uncontended).then(|| counted(&self.counter)),
            handoffs: (self.job == Job::Contended).then(|| counted(&self.handoffs)),
            gave_up: 0,
        }
    }
}

/// How long an acquisition took, in microseconds.
pub fn microseconds(asked: Instant, granted: Instant) -> u32 {
    u32::try_from((granted - asked).as_micros()).unwrap_or(u32::MAX)
}
