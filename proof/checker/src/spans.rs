//! Two questions about many spans of time, each answered in O(log n).

use crate::history::Nanos;

/// Spans of time; knows whether any of them touches another.
#[derive(Debug, Default)]
pub(crate) struct Spans {
    /// Sorted by start; the end is the latest of all up to here.
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
    /// Whether a span touches the one given.
    pub(crate) fn overlap(&self, from: Nanos, to: Nanos) -> bool {
        let begun = self.sorted.partition_point(|&(start, _)| start <= to);
        begun > 0 && self.sorted[begun - 1].1 >= from
    }
}

/// Values by instant; knows the least of those from an instant on.
#[derive(Debug, Default)]
pub(crate) struct MinFrom<V> {
    /// Sorted by instant; the value is the least of all from here on.
    sorted: Vec<(Nanos, V)>,
}

impl<V: Ord + Copy> FromIterator<(Nanos, V)> for MinFrom<V> {
    fn from_iter<I: IntoIterator<Item = (Nanos, V)>>(values: I) -> Self {
        let mut sorted: Vec<_> = values.into_iter().collect();
        sorted.sort_unstable();
        let mut least = None;
        for (_, value) in sorted.iter_mut().rev() {
            let now = least.map_or(*value, |least: V| least.min(*value));
            *value = now;
            least = Some(now);
        }
        Self { sorted }
    }
}

impl<V: Copy> MinFrom<V> {
    /// The least value of those at the instant or later.
    pub(crate) fn get(&self, from: Nanos) -> Option<V> {
        let place = self.sorted.partition_point(|&(at, _)| at < from);
        self.sorted.get(place).map(|&(_, value)| value)
    }
}
