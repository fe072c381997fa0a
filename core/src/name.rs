//! The name of a lock: a database and a key.

use std::rc::Rc;

/// The number of a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Db(pub i32);

impl Db {
    /// The database that holds the contents of this database after SWAPDB `one` `other`.
    #[must_use]
    pub const fn swapped(self, one: Self, other: Self) -> Self {
        match self.0 {
            number if number == one.0 => other,
            number if number == other.0 => one,
            _ => self,
        }
    }
}

/// The name of a lock. Clones share the key.
pub type LockName = (Db, Rc<[u8]>);
