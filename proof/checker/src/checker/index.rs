//! Indexes of the calls by owner, and of the faults by client.

use crate::bounds::Bounds;
use crate::history::{Call, Fault, History, NOBODY, Nanos};
use crate::spans::{Spans, grouped};
use std::collections::BTreeMap;

/// The index of a line, and the call on it.
pub(super) type IndexedCall<'h> = (usize, &'h Call);

/// The calls of each owner on each lock, sorted by their start.
pub(super) fn calls_by_owner(history: &History) -> BTreeMap<(&str, &str), Vec<IndexedCall<'_>>> {
    let calls = history.calls().map(|(line, call)| ((call.key.as_str(), call.owner.as_str()), (line, call)));
    let mut groups: BTreeMap<_, Vec<_>> = grouped(calls);
    groups.values_mut().for_each(|calls| calls.sort_by_key(|(_, call)| call.start));
    groups
}

/// The spans of the faults.
pub(super) struct FaultSpans {
    /// For each client (`None`: all clients), the spans in which a fault may delay replies.
    delays: BTreeMap<Option<u32>, Spans>,
    /// The spans of the faults to the servers, and of operations on the servers such as the move of a slot.
    servers: Spans,
}

impl FaultSpans {
    pub(super) fn of(history: &History, bounds: &Bounds) -> Self {
        let delay = |fault: &Fault| (fault.client, (fault.start, fault.end.saturating_add(bounds.settle)));
        let of_servers = history.faults().filter(|fault| fault.client.is_none_or(|client| client == NOBODY));
        Self {
            delays: grouped(history.faults().map(delay)),
            servers: of_servers.map(|fault| (fault.start, fault.end)).collect(),
        }
    }

    /// Whether a fault to the servers, or an operation on them, happened in this span.
    pub(super) fn disturbed_servers(&self, from: Nanos, to: Nanos) -> bool {
        self.servers.overlap(from, to)
    }

    /// Whether a fault to the servers or to this client may delay replies in this span.
    pub(super) fn may_delay(&self, client: u32, from: Nanos, to: Nanos) -> bool {
        let spans = [None, Some(client)].into_iter().filter_map(|whose| self.delays.get(&whose));
        spans.into_iter().any(|spans| spans.overlap(from, to))
    }
}
