//! Who stands in one line, in the order of their places.
//!
//! Most leave from the front. Who leaves from behind it leaves its place empty until the front gets there, or until more
//! are empty than taken. The first place is never empty.

use std::collections::VecDeque;

/// A place in a line: the earlier, the smaller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position(pub u64);

/// A line of `T`s, each in its place.
#[derive(Debug)]
pub struct Queue<T> {
    places: VecDeque<(Position, Option<T>)>,
    taken: usize,
}

impl<T> Queue<T> {
    /// An empty line, with room for one: there are many lines of one waiter.
    pub fn new() -> Self {
        Self { places: VecDeque::with_capacity(1), taken: 0 }
    }

    fn find(&self, place: Position) -> Result<usize, usize> {
        match self.places.back() {
            Some((last, _)) if *last >= place => {
                self.places.binary_search_by_key(&place, |(place, _)| *place)
            }
            _ => Err(self.places.len()),
        }
    }

    /// How many stand in it.
    pub const fn len(&self) -> usize {
        self.taken
    }

    /// Who stands in a place.
    pub fn get(&self, place: Position) -> Option<&T> {
        self.places.get(self.find(place).ok()?)?.1.as_ref()
    }

    /// Who is next.
    pub fn first(&self) -> Option<&T> {
        self.places.front()?.1.as_ref()
    }

    /// All of them, next first.
    pub fn in_order(&self) -> impl Iterator<Item = &T> {
        self.places.iter().filter_map(|(_, one)| one.as_ref())
    }

    /// Puts one into its place, wherever that is.
    pub fn insert(&mut self, place: Position, one: T) {
        match self.find(place) {
            Err(index) => self.places.insert(index, (place, Some(one))),
            Ok(index) => {
                if let Some(empty) = self.places.get_mut(index) {
                    empty.1 = Some(one);
                }
            }
        }
        self.taken = self.taken.saturating_add(1);
    }

    /// Takes out who is next.
    pub fn pop_first(&mut self) -> Option<(Position, T)> {
        let (place, one) = self.places.pop_front()?;
        self.close_up();
        Some((place, one?))
    }

    /// Takes out who stands in a place.
    pub fn remove(&mut self, place: Position) -> Option<T> {
        let index = self.find(place).ok()?;
        let one = self.places.get_mut(index)?.1.take()?;
        self.close_up();
        Some(one)
    }

    /// After one has left.
    fn close_up(&mut self) {
        const SPARE: usize = 64;
        self.taken = self.taken.saturating_sub(1);
        while let Some((_, None)) = self.places.front() {
            self.places.pop_front();
        }
        if self.places.len() / 2 > self.taken.saturating_add(SPARE) {
            self.places.retain(|(_, one)| one.is_some());
        }
        if self.places.capacity() / 8 > self.places.len().saturating_add(SPARE) {
            self.places.shrink_to(self.places.len().saturating_mul(2));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(of: u64) -> Queue<u64> {
        let mut queue = Queue::new();
        (0..of).for_each(|place| queue.insert(Position(place), place));
        queue
    }

    #[test]
    fn who_leaves_from_the_midst_leaves_a_few_places_empty_and_no_more() {
        let mut queue = line(1_000);
        let mut left: Vec<u64> = (0..1_000).collect();
        // From both ends of the midst, so that none of them is near the front for long.
        for place in (1..500).flat_map(|at| [at, 1_000 - at]) {
            left.retain(|one| *one != place);
            assert_eq!(queue.remove(Position(place)), Some(place));
            assert_eq!(queue.remove(Position(place)), None, "it has left");
            assert_eq!(queue.len(), left.len());
            assert!(queue.places.len() <= 2 * (left.len() + 64) + 1);
            if left.len() >= 500 {
                assert_eq!(queue.places.len(), 1_000, "nothing is moved for a few");
            }
        }
        assert!(queue.in_order().eq(&left));
        assert_eq!(queue.first(), Some(&0));
        assert_eq!(queue.get(Position(999)), None);
    }

    #[test]
    fn a_long_line_gives_its_memory_back_and_a_short_one_keeps_it() {
        let mut long = line(10_000);
        while long.len() > 1 {
            long.pop_first();
            assert!(long.places.capacity() / 8 <= long.len() + 64);
        }
        let mut short = line(100);
        let capacity = short.places.capacity();
        while short.pop_first().is_some() {}
        assert_eq!(short.places.capacity(), capacity);
    }
}
