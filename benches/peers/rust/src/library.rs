//! The Rust client, used as its README advises: one `Client` for the process, and a tokio task for each client.

use crate::job_run::{HOLD, JobRun};
use lockward_bench::peers::job::{Job, PERMITS};
use lockward_client::{Client, Error};
use std::thread;
use std::time::Instant;
use tokio::task;

pub const NOTES: &str = "one Client; lease 30 s, renewed";

/// Runs the job with this number of clients. Returns three numbers for each tenure of each client.
pub async fn run_clients(address: &str, job_run: JobRun, clients: usize) -> Vec<Vec<i64>> {
    let connected = Client::connect(&format!("redis://{address}")).await;
    let connected = connected.unwrap_or_else(|error| panic!("{error}"));
    let tasks: Vec<_> =
        (0..clients).map(|client| task::spawn(run(connected.clone(), client, job_run))).collect();
    let mut tenures = Vec::new();
    for task in tasks {
        let done = task.await.expect("a client that comes to its end");
        tenures.push(done.unwrap_or_else(|error| panic!("{error}")));
    }
    tenures
}

async fn run(connected: Client, client: usize, job_run: JobRun) -> Result<Vec<i64>, Error> {
    let key = job_run.key(client);
    let mut tenures = Vec::new();
    while !job_run.is_over() {
        let asked = Instant::now();
        let lock = connected.lock(&key);
        let lock = match job_run.job {
            Job::Readers if !job_run.job.is_writer(client) => lock.shared(),
            Job::Permits | Job::Weights => {
                lock.slots(PERMITS as u32).weight(job_run.job.weight(client) as u32)
            }
            Job::Uncontended | Job::Contended | Job::Readers => lock,
        };
        let guard = lock.acquire().await?;
        let granted = Instant::now();
        if job_run.job.is_shared() {
            // tokio::time::sleep would take up to a millisecond longer.
            task::spawn_blocking(|| thread::sleep(HOLD)).await.expect("a thread that sleeps");
        } else if job_run.job == Job::Contended {
            task::yield_now().await;
        }
        tenures.extend(job_run.tenure([asked, granted, Instant::now()]));
        guard.release().await?;
    }
    Ok(tenures)
}
