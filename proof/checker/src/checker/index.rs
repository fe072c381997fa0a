//! Calls by key or owner, and faults by client.

use crate::bounds::Bounds;
use crate::history::{Call, History, Nanos};
use crate::spans::Spans;
use std::collections::{BTreeMap, HashMap};

/// The index of a line, and its call.
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

/// The spans in which a fault may delay replies.
pub(super) struct FaultSpans(HashMap<Option<u32>, Spans>);

impl FaultSpans {
    pub(super) fn of(history: &History, bounds: &Bounds) -> Self {
        let mut spans = HashMap::<_, Vec<_>>::new();
        for fault in history.faults() {
            let over = fault.end.saturating_add(bounds.settle);
            spans.entry(fault.client).or_default().push((fault.start, over));
        }
        Self(spans.into_iter().map(|(client, spans)| (client, spans.into_iter().collect())).collect())
    }

    /// Whether a fault to the servers or to this client may delay replies in this span.
    pub(super) fn overlap(&self, client: u32, from: Nanos, to: Nanos) -> bool {
        let spans = [None, Some(client)].into_iter().filter_map(|whose| self.0.get(&whose));
        spans.into_iter().any(|spans| spans.overlap(from, to))
    }
}
