//! Enough open files for the connections of thousands of clients.

use crate::queues::Queues;
use lockward_tests::{own_files, raise_open_files};
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};

/// The number of files that a process may open besides the connections of the waiters.
pub const SPARE_FILES: usize = 300;

/// Queues on their own thread. The thread has its own table of open files, so it may have as many open files as a
/// process.
#[derive(Debug)]
pub struct QueuesThread {
    tasks: Sender<Task>,
    thread: JoinHandle<()>,
}

type Task = Box<dyn FnOnce(&mut Queues) + Send>;

impl QueuesThread {
    /// Starts a thread, and makes its queues there.
    pub fn start(queues: impl FnOnce() -> Queues + Send + 'static) -> Self {
        let (tasks, received) = channel::<Task>();
        let thread = thread::spawn(move || {
            own_files();
            let mut queues = queues();
            for task in received {
                task(&mut queues);
            }
        });
        Self { tasks, thread }
    }

    /// Runs a function on the thread, and returns its result.
    pub fn run<T: Send + 'static>(&self, what: impl FnOnce(&mut Queues) -> T + Send + 'static) -> T {
        let (reply, answer) = channel();
        let task: Task = Box::new(move |queues| drop(reply.send(what(queues))));
        self.tasks.send(task).expect("a thread that runs");
        answer.recv().expect("a thread that runs")
    }

    pub fn end(self) {
        drop(self.tasks);
        self.thread.join().expect("a thread that runs");
    }
}

/// Checks that a process may have enough open files for this number of waiters.
pub fn allow_waiters(count: usize) {
    let wanted = (count + SPARE_FILES) as u64;
    let open_files = raise_open_files(wanted);
    assert!(
        open_files >= wanted,
        "{count} waiters need {wanted} open files: raise `ulimit -n` from {open_files}"
    );
}
