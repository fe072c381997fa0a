//! Indexes of the calls by key or owner, and of the faults by client.

use crate::bounds::Bounds;
use crate::history::{Call, Fault, History, NOBODY, Nanos};
use crate::spans::Spans;
use std::collections::{BTreeMap, HashMap};

/// The index of a line, and the call on it.
pub(super) type IndexedCall<'h> = (usize, &'h Call);

/// Groups the calls by a key.
pub(super) fn group_calls<'h, K: Ord>(
    history: &'h History,
    by: impl Fn(&'h Call) -> K,
) -> BTreeMap<K, Vec<IndexedCall<'h>>> {
    let mut groups = BTreeMap::<_, Vec<_>>::new();
    for (line, call) in history.calls() {
        groups.entry(by(call)).or_default().push((line, call));
    }
    groups
}

/// The spans of the faults.
pub(super) struct FaultSpans {
    /// For each client (`None`: all clients), the spans in which a fault may delay replies.
    delays: HashMap<Option<u32>, Spans>,
    /// The spans of the faults to the servers, and of operations on the servers such as the move of a slot.
    servers: Spans,
    /// The spans of the faults to the servers, without operations.
    failures: Spans,
}

impl FaultSpans {
    pub(super) fn of(history: &History, bounds: &Bounds) -> Self {
        let mut spans = HashMap::<_, Vec<_>>::new();
        for fault in history.faults() {
            let over = fault.end.saturating_add(bounds.settle);
            spans.entry(fault.client).or_default().push((fault.start, over));
        }
        let is_of_servers = |fault: &&Fault| fault.client.is_none() || fault.client == Some(NOBODY);
        let servers = history.faults().filter(is_of_servers).map(|fault| (fault.start, fault.end));
        Self {
            delays: spans.into_iter().map(|(client, spans)| (client, spans.into_iter().collect())).collect(),
            servers: servers.collect(),
            failures: history
                .faults()
                .filter(|fault| fault.client.is_none())
                .map(|fault| (fault.start, fault.end))
                .collect(),
        }
    }

    /// Whether a fault to the servers, or an operation on them, happened in this span.
    pub(super) fn disturbed_servers(&self, from: Nanos, to: Nanos) -> bool {
        self.servers.overlap(from, to)
    }

    /// Whether a fault to the servers happened in this span.
    pub(super) fn on_servers(&self, from: Nanos, to: Nanos) -> bool {
        self.failures.overlap(from, to)
    }

    /// Whether a fault to the servers or to this client may delay replies in this span.
    pub(super) fn may_delay(&self, client: u32, from: Nanos, to: Nanos) -> bool {
        let spans = [None, Some(client)].into_iter().filter_map(|whose| self.delays.get(&whose));
        spans.into_iter().any(|spans| spans.overlap(from, to))
    }
}
