//! Where the server calls in: every `extern "C"` function of the module, each inside [`guard`], so that no panic ever
//! crosses into the server, which it would end.

use crate::server::{Level, log};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

pub mod blocked;
pub mod carrier;
pub mod command;
pub mod config;
pub mod data_type;
pub mod events;
pub mod next_command;
#[cfg(feature = "panic-probe")]
pub mod probe;
pub mod statistics;
pub mod timer;

/// The kinds of callback, as the log names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Callback {
    /// Loading the module.
    Load,
    /// A command.
    Command,
    /// The answer to a client that was blocked.
    Reply,
    /// CLIENT UNBLOCK of a blocked client.
    Unblock,
    /// A blocked client has left.
    Disconnect,
    /// An answer has failed.
    Untold,
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
    /// The server has forked a child process, or one has ended.
    Fork,
    /// A key has expired or was evicted.
    Notify,
    /// A command begins.
    NextCommand,
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
    /// How large a lock is.
    MemUsage,
    /// The digest of a lock.
    Digest,
    /// A lock is moved in memory.
    Defrag,
    /// A snapshot begins or ends.
    Snapshot,
    /// INFO is asked for.
    Statistics,
    /// A setting is read or written.
    Config,
}

/// Runs a callback. When it panics, says so in the log and returns `fallback`.
pub fn catch_panic<R>(edge: Callback, fallback: R, callback: impl FnOnce() -> R) -> R {
    let run = || {
        #[cfg(feature = "panic-probe")]
        probe::go_off(edge);
        callback()
    };
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|cause| {
        log(Level::Warning, &format!("panic caught in {edge:?}: {}", reason(cause.as_ref())));
        fallback
    })
}

fn reason(cause: &(dyn Any + Send)) -> &str {
    let text = cause.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| cause.downcast_ref::<&str>().copied()).unwrap_or("for no known reason")
}
