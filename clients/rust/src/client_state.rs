//! What all handles of one client share.

use crate::address::Address;
use crate::background::{self, Task};
use crate::commands::OwnedKey;
use crate::connections::locked;
use crate::error::Error;
use crate::servers::Servers;
use crate::settings::Settings;
use crate::tenure::OwnerMutex;
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, mpsc};
use uuid::Uuid;

pub(crate) struct ClientState {
    pub(crate) servers: Arc<Servers>,
    /// One permit for each connection that may wait in a queue.
    pub(crate) wait_permits: Semaphore,
    tasks: mpsc::UnboundedSender<Task>,
    /// The mutexes of owners that callers have named.
    owners: Mutex<HashMap<OwnedKey, Weak<OwnerMutex>>>,
    id: Uuid,
    next_owner: AtomicU64,
}

impl ClientState {
    /// Starts the background task, too.
    pub(crate) fn new(address: Address, settings: Settings) -> Result<Self, Error> {
        let runtime = current_runtime()?;
        let (tasks, receiver) = mpsc::unbounded_channel();
        let wait_permits = Semaphore::new(settings.waiting_connections.min(Semaphore::MAX_PERMITS));
        let on_break = tasks.downgrade();
        let servers = Arc::new(Servers::new(address, settings, move || {
            if let Some(tasks) = on_break.upgrade() {
                let _ = tasks.send(Task::RenewAll);
            }
        })?);
        runtime.spawn(background::run(Arc::clone(&servers), receiver));
        Ok(Self {
            servers,
            wait_permits,
            tasks,
            owners: Mutex::default(),
            id: Uuid::new_v4(),
            next_owner: AtomicU64::new(0),
        })
    }

    /// Sends a task to the background task. If the runtime has ended, the task is dropped, and leases end by
    /// themselves.
    pub(crate) fn enqueue(&self, task: Task) {
        let _ = self.tasks.send(task);
    }

    /// The name of an owner that nobody else uses.
    pub(crate) fn unique_owner(&self) -> Vec<u8> {
        format!("{}:{}", self.id, self.next_owner.fetch_add(1, Ordering::Relaxed)).into_bytes()
    }

    /// The mutex of a named owner.
    pub(crate) fn owner_mutex(&self, key: &OwnedKey) -> Arc<OwnerMutex> {
        let mut owners = locked(&self.owners);
        if let Some(mutex) = owners.get(key).and_then(Weak::upgrade) {
            return mutex;
        }
        owners.retain(|_, mutex| mutex.strong_count() > 0);
        let mutex = Arc::default();
        owners.insert(key.clone(), Arc::downgrade(&mutex));
        mutex
    }
}

pub(crate) fn current_runtime() -> Result<Handle, Error> {
    Handle::try_current().map_err(|_| Error::Invalid("create the client in a tokio runtime"))
}

impl fmt::Debug for ClientState {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Client").field("name", &self.id).finish_non_exhaustive()
    }
}
