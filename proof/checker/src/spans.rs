//! Values by key, and queries over many time spans in O(log n).

use crate::history::Nanos;
use std::collections::BTreeMap;

/// Collects the values of each key, in their order.
pub(crate) fn grouped<K: Ord, V, C: FromIterator<V>>(
    pairs: impl IntoIterator<Item = (K, V)>,
) -> BTreeMap<K, C> {
    let mut groups = BTreeMap::<K, Vec<V>>::new();
    for (key, value) in pairs {
        groups.entry(key).or_default().push(value);
    }
    groups.into_iter().map(|(key, values)| (key, values.into_iter().collect())).collect()
}

/// A set of time spans that answers whether one of them overlaps a given span.
#[derive(Debug, Default)]
pub(crate) struct Spans {
    /// Sorted by start. Each end is the latest end of its own span and all earlier spans.
    sorted: Vec<(Nanos, Nanos)>,
}

impl FromIterator<(Nanos, Nanos)> for Spans {
    fn from_iter<I: IntoIterator<Item = (Nanos, Nanos)>>(spans: I) -> Self {
        let mut sorted: Vec<_> = spans.into_iter().collect();
        sorted.sort_unstable();
        let mut latest = 0;
        for (_, end) in &mut sorted {
            latest = latest.max(*end);
            *end = latest;
        }
        Self { sorted }
    }
}

impl Spans {
    /// Whether a span of the set overlaps the given span.
    pub(crate) fn overlap(&self, from: Nanos, to: Nanos) -> bool {
        let begun = self.sorted.partition_point(|&(start, _)| start <= to);
        begun > 0 && self.sorted[begun - 1].1 >= from
    }
}

/// Values, each with a time. Finds the smallest value from a given time on, after a call of
/// [`MinFrom::index`].
#[derive(Debug)]
pub(crate) struct MinFrom<V> {
    /// Sorted by time. Each value is the smallest value from its time on.
    sorted: Vec<(Nanos, V)>,
}

impl<V> Default for MinFrom<V> {
    fn default() -> Self {
        Self { sorted: Vec::new() }
    }
}

impl<V: Ord + Copy> FromIterator<(Nanos, V)> for MinFrom<V> {
    fn from_iter<I: IntoIterator<Item = (Nanos, V)>>(values: I) -> Self {
        let mut all = Self { sorted: values.into_iter().collect() };
        all.index();
        all
    }
}

impl<V: Ord + Copy> MinFrom<V> {
    /// Adds a value.
    pub(crate) fn push(&mut self, time: Nanos, value: V) {
        self.sorted.push((time, value));
    }

    /// Prepares the queries. Call this after the last value was added.
    pub(crate) fn index(&mut self) {
        self.sorted.sort_unstable();
        let mut least = None;
        for (_, value) in self.sorted.iter_mut().rev() {
            let now = least.map_or(*value, |least: V| least.min(*value));
            *value = now;
            least = Some(now);
        }
    }

    /// The smallest value at this time or later.
    pub(crate) fn get(&self, from: Nanos) -> Option<V> {
        let index = self.sorted.partition_point(|&(at, _)| at < from);
        self.sorted.get(index).map(|&(_, value)| value)
    }
}
