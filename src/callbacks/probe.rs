//! For the test suite alone: panics at will, to show that they are caught.

use super::Edge;
use std::cell::Cell;

thread_local! {
    static ARMED: Cell<Option<Edge>> = const { Cell::new(None) };
}

const EDGES: [(&[u8], Edge); 20] = [
    (b"command", Edge::Command),
    (b"reply", Edge::Reply),
    (b"disconnect", Edge::Disconnect),
    (b"timer", Edge::Timer),
    (b"cron", Edge::Cron),
    (b"unlink", Edge::Unlink),
    (b"notify", Edge::Notify),
    (b"next-command", Edge::NextCommand),
    (b"flush", Edge::Flush),
    (b"swapdb", Edge::SwapDb),
    (b"role", Edge::Role),
    (b"loading", Edge::Loading),
    (b"rdb-save", Edge::RdbSave),
    (b"rdb-load", Edge::RdbLoad),
    (b"aof-rewrite", Edge::AofRewrite),
    (b"mem-usage", Edge::MemUsage),
    (b"digest", Edge::Digest),
    (b"snapshot", Edge::Snapshot),
    (b"statistics", Edge::Statistics),
    (b"config", Edge::Config),
];

/// Makes the next callback of the kind named `edge` panic. False when there is none of that name.
pub fn arm(edge: &[u8]) -> bool {
    let found = EDGES.iter().find(|(name, _)| *name == edge).map(|(_, edge)| *edge);
    ARMED.set(found);
    found.is_some()
}

/// Panics when `edge` is armed.
pub fn go_off(edge: Edge) {
    if ARMED.get() == Some(edge) {
        ARMED.set(None);
        std::panic::resume_unwind(Box::new("asked for by LOCK._PANIC"));
    }
}
