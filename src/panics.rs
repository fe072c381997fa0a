//! No panic leaves the module, because such a panic would end the server's process.

use crate::server::{Level, in_use, log};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The kinds of callback, as the log names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Callback {
    /// Loading the module.
    Load,
    /// A command.
    Command,
    /// The server asks for the keys of a command, perhaps on one of its I/O threads.
    Keys,
    /// The reply to a client that was blocked.
    Reply,
    /// CLIENT UNBLOCK of a blocked client.
    Unblock,
    /// A blocked client has left.
    Disconnect,
    /// The callback that replies has failed, and the module drops the pending reply.
    ReplyFailed,
    /// The module's timer.
    Timer,
    /// The server's cron.
    Cron,
    /// The server has become primary or replica.
    Role,
    /// Loading of data begins or ends.
    Loading,
    /// A database was flushed.
    Flush,
    /// Two databases were swapped.
    SwapDb,
    /// The server has forked a child process, or a child process has ended.
    Fork,
    /// The server publishes a keyspace event, for example because a key has expired.
    Notify,
    /// A command begins.
    NextCommand,
    /// A transaction, script or function is over.
    Over,
    /// A lock leaves the keyspace.
    Unlink,
    /// A lock is read from an RDB file.
    RdbLoad,
    /// A lock is written to an RDB file.
    RdbSave,
    /// A lock is written to the AOF.
    AofRewrite,
    /// A lock is freed.
    Free,
    /// The server asks for the size of a lock.
    MemUsage,
    /// The server asks for the digest of a lock.
    Digest,
    /// A lock is moved in memory.
    Defrag,
    /// A snapshot begins or ends.
    Snapshot,
    /// The server composes the reply of INFO.
    Statistics,
    /// A setting is read or written.
    Config,
}

/// Runs a callback. If the callback panics, this function logs the panic and returns `fallback`.
///
/// If a shared value is in use, the server has called back into the module during a call from the module. In this case
/// the callback does not run, and this function logs the call and returns `fallback`. The kinds Free and Keys run even
/// in this case, because the server may call them on another thread while the main thread uses a shared value.
pub fn catch_panic<R>(kind: Callback, fallback: R, callback: impl FnOnce() -> R) -> R {
    if !matches!(kind, Callback::Free | Callback::Keys) && in_use() {
        log(
            Level::Warning,
            &format!("{kind:?} ignored: the server called it while the module's state was in use"),
        );
        return fallback;
    }
    let run = || {
        #[cfg(feature = "panic-probe")]
        probe::panic_if_armed(kind);
        callback()
    };
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|cause| {
        log(Level::Warning, &format!("panic caught in {kind:?}: {}", reason(cause.as_ref())));
        fallback
    })
}

fn reason(cause: &(dyn Any + Send)) -> &str {
    let text = cause.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| cause.downcast_ref::<&str>().copied()).unwrap_or("for no known reason")
}

/// Panics on request. The test suite uses these functions to show that panics are caught.
#[cfg(feature = "panic-probe")]
pub mod probe {
    use crate::panics::Callback;
    use std::cell::RefCell;

    thread_local! {
        static ARMED: RefCell<Option<Vec<u8>>> = const { RefCell::new(None) };
    }

    /// Makes the next callback of the kind with this name panic.
    pub fn arm(kind: &[u8]) {
        ARMED.replace(Some(kind.to_vec()));
    }

    pub fn panic_if_armed(kind: Callback) {
        let is_armed = |armed: &mut Vec<u8>| *armed == format!("{kind:?}").into_bytes();
        if ARMED.with_borrow_mut(|armed| armed.take_if(is_armed)).is_some() {
            std::panic::resume_unwind(Box::new("asked for by LOCK._PANIC"));
        }
    }
}
