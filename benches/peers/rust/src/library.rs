//! The Rust client, used as its README advises: one `Client` for the process, and a tokio task for each client.

use crate::job_run::{HOLD, JobRun, Limit, key, limit, microseconds};
use lockward_bench::peers::job::{Job, PERMITS};
use lockward_client::Client;
use std::sync::Arc;
use std::thread;
use std::time::Instant;
use tokio::task;

/// How the library is used.
pub const NOTES: &str = "one Client; lease 30 s, renewed";

/// Connects to the server.
pub async fn connect(address: &str) -> Client {
    let client = Client::connect(&format!("redis://{address}")).await;
    client.unwrap_or_else(|error| panic!("{error}"))
}

/// Runs the job with this number of clients. Returns how long each client's acquisitions took, in microseconds.
pub async fn run_clients(client: &Client, job_run: &Arc<JobRun>, clients: usize) -> Vec<Vec<u32>> {
    let tasks: Vec<_> =
        (0..clients).map(|number| task::spawn(run(client.clone(), number, Arc::clone(job_run)))).collect();
    let mut times = Vec::new();
    for task in tasks {
        times.push(task.await.expect("a client that comes to its end"));
    }
    times
}

async fn run(client: Client, number: usize, job_run: Arc<JobRun>) -> Vec<u32> {
    let key = key(job_run.job, number);
    let mut times = Vec::new();
    loop {
        let asked = Instant::now();
        if job_run.is_over(asked) {
            return times;
        }
        let lock = client.lock(&key);
        let lock = match limit(job_run.job, number) {
            Limit::Exclusive => lock,
            Limit::Shared => lock.shared(),
            Limit::Permits(weight) => lock.slots(PERMITS as u32).weight(weight as u32),
        };
        let guard = lock.acquire().await.unwrap_or_else(|error| panic!("{error}"));
        let granted = Instant::now();
        let is_counted = job_run.counts(granted);
        // A client that gets the lock after the end of the job only releases it.
        if !job_run.is_over(granted) {
            if job_run.job.is_shared() {
                job_run.enter(number, is_counted);
                // tokio::time::sleep would take up to a millisecond longer.
                task::spawn_blocking(|| thread::sleep(HOLD)).await.expect("a thread that sleeps");
                job_run.leave(number);
            } else if job_run.job == Job::Contended {
                let read = job_run.read(is_counted);
                task::yield_now().await;
                job_run.write(number, read, is_counted);
            }
        }
        guard.release().await.unwrap_or_else(|error| panic!("{error}"));
        if is_counted {
            times.push(microseconds(asked, granted));
        }
    }
}
