//! Who stands in one line, in the order of their places.
//!
//! Most leave from the front. Who leaves from behind it leaves its place empty until the front gets there, or until more
//! are empty than taken. The first place is never empty.

use std::collections::VecDeque;

/// A place in a line: the earlier, the smaller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place(pub u64);

/// A line of `T`s, each in its place.
#[derive(Debug)]
pub struct Queue<T> {
    places: VecDeque<(Place, Option<T>)>,
    taken: usize,
}

impl<T> Queue<T> {
    /// An empty line, with room for one: there are many lines of one waiter.
    pub fn new() -> Self {
        Self { places: VecDeque::with_capacity(1), taken: 0 }
    }

    fn find(&self, place: Place) -> Result<usize, usize> {
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
    pub fn get(&self, place: Place) -> Option<&T> {
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
    pub fn insert(&mut self, place: Place, one: T) {
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
    pub fn pop_first(&mut self) -> Option<(Place, T)> {
        let (place, one) = self.places.pop_front()?;
        self.close_up();
        Some((place, one?))
    }

    /// Takes out who stands in a place.
    pub fn remove(&mut self, place: Place) -> Option<T> {
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
