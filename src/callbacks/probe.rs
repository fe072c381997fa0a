//! For the test suite alone: panics at will, to show that they are caught.

use super::Callback;
use std::cell::Cell;

thread_local! {
    static ARMED: Cell<Option<Callback>> = const { Cell::new(None) };
}

const EDGES: [(&[u8], Callback); 20] = [
    (b"command", Callback::Command),
    (b"reply", Callback::Reply),
    (b"disconnect", Callback::Disconnect),
    (b"timer", Callback::Timer),
    (b"cron", Callback::Cron),
    (b"unlink", Callback::Unlink),
    (b"notify", Callback::Notify),
    (b"next-command", Callback::NextCommand),
    (b"flush", Callback::Flush),
    (b"swapdb", Callback::SwapDb),
    (b"role", Callback::Role),
    (b"loading", Callback::Loading),
    (b"rdb-save", Callback::RdbSave),
    (b"rdb-load", Callback::RdbLoad),
    (b"aof-rewrite", Callback::AofRewrite),
    (b"mem-usage", Callback::MemUsage),
    (b"digest", Callback::Digest),
    (b"snapshot", Callback::Snapshot),
    (b"statistics", Callback::Statistics),
    (b"config", Callback::Config),
];

/// Makes the next callback of the kind named `edge` panic. False when there is none of that name.
pub fn arm(edge: &[u8]) -> bool {
    let found = EDGES.iter().find(|(name, _)| *name == edge).map(|(_, edge)| *edge);
    ARMED.set(found);
    found.is_some()
}

/// Panics when `edge` is armed.
pub fn go_off(edge: Callback) {
    if ARMED.get() == Some(edge) {
        ARMED.set(None);
        std::panic::resume_unwind(Box::new("asked for by LOCK._PANIC"));
    }
}
