//! A queue whose elements have fixed positions.
//!
//! Most elements are removed from the front. The removal of another element leaves its position vacant. Vacant
//! positions are removed when they reach the front, or when they outnumber the elements. The first position is never
//! vacant.

use std::collections::VecDeque;

/// A position in a queue. Smaller positions come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position(pub u64);

/// A queue of `T`s, each at its position.
#[derive(Debug)]
pub struct Queue<T> {
    positions: VecDeque<(Position, Option<T>)>,
    len: usize,
}

impl<T> Queue<T> {
    /// An empty queue, with memory for one element, because most queues have one waiter.
    pub fn new() -> Self {
        Self { positions: VecDeque::with_capacity(1), len: 0 }
    }

    fn find(&self, position: Position) -> Result<usize, usize> {
        match (self.positions.front(), self.positions.back()) {
            (Some((first, _)), _) if *first == position => Ok(0),
            (_, Some((last, _))) if *last >= position => {
                self.positions.binary_search_by_key(&position, |(position, _)| *position)
            }
            _ => Err(self.positions.len()),
        }
    }

    /// How many elements there are.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// The element at a position.
    pub fn get(&self, position: Position) -> Option<&T> {
        self.positions.get(self.find(position).ok()?)?.1.as_ref()
    }

    /// The first element.
    pub fn first(&self) -> Option<&T> {
        self.positions.front()?.1.as_ref()
    }

    /// The position of the first element.
    pub fn first_position(&self) -> Option<Position> {
        self.positions.front().map(|(position, _)| *position)
    }

    /// All elements, in the order of their positions.
    pub fn in_order(&self) -> impl Iterator<Item = &T> {
        self.positions.iter().filter_map(|(_, element)| element.as_ref())
    }

    /// Inserts an element at a position that is vacant or outside the queue.
    pub fn insert(&mut self, position: Position, element: T) {
        match self.find(position) {
            Err(index) => self.positions.insert(index, (position, Some(element))),
            Ok(index) => {
                if let Some(vacant) = self.positions.get_mut(index) {
                    vacant.1 = Some(element);
                }
            }
        }
        self.len = self.len.saturating_add(1);
    }

    /// Removes the element at a position.
    pub fn remove(&mut self, position: Position) -> Option<T> {
        let index = self.find(position).ok()?;
        let element = self.positions.get_mut(index)?.1.take()?;
        self.clean_up();
        Some(element)
    }

    /// Updates the length after a removal, and removes vacant positions and unused memory.
    fn clean_up(&mut self) {
        const SPARE: usize = 64;
        self.len = self.len.saturating_sub(1);
        while let Some((_, None)) = self.positions.front() {
            self.positions.pop_front();
        }
        if self.positions.len() / 2 > self.len.saturating_add(SPARE) {
            self.positions.retain(|(_, element)| element.is_some());
        }
        if self.positions.capacity() / 8 > self.positions.len().saturating_add(SPARE) {
            self.positions.shrink_to(self.positions.len().saturating_mul(2));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue_of(count: u64) -> Queue<u64> {
        let mut queue = Queue::new();
        (0..count).for_each(|number| queue.insert(Position(number), number));
        queue
    }

    #[test]
    fn removals_from_the_middle_leave_few_positions_vacant() {
        let mut queue = queue_of(1_000);
        let mut left: Vec<u64> = (0..1_000).collect();
        // Removes all elements except the first and the element at 500, from both ends to the middle. The first element
        // stays, so the vacant positions do not reach the front.
        for number in (1..500).flat_map(|at| [at, 1_000 - at]) {
            left.retain(|other| *other != number);
            assert_eq!(queue.remove(Position(number)), Some(number));
            assert_eq!(queue.remove(Position(number)), None, "it has left");
            assert_eq!(queue.len(), left.len());
            assert!(queue.positions.len() <= 2 * (left.len() + 64) + 1);
            if left.len() >= 500 {
                assert_eq!(queue.positions.len(), 1_000, "a few vacant positions are kept");
            }
        }
        assert!(queue.in_order().eq(&left));
        assert_eq!(queue.first(), Some(&0));
        assert_eq!(queue.get(Position(999)), None);
    }

    #[test]
    fn a_long_queue_releases_its_memory_and_a_short_one_keeps_it() {
        let mut long = queue_of(10_000);
        while long.len() > 1 {
            long.remove(long.first_position().unwrap());
            assert!(long.positions.capacity() / 8 <= long.len() + 64);
        }
        let mut short = queue_of(100);
        let capacity = short.positions.capacity();
        while let Some(first) = short.first_position() {
            short.remove(first);
        }
        assert_eq!(short.positions.capacity(), capacity);
    }
}
