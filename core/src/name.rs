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

/// The name of a lock, borrowed. Core calls [`key`](Self::key) only for a lookup, because the first call reads the
/// key from the server.
pub trait NameRef {
    /// The database.
    fn db(&self) -> Db;
    /// The key.
    fn key(&self) -> &[u8];
}

impl NameRef for LockName {
    fn db(&self) -> Db {
        self.0
    }

    fn key(&self) -> &[u8] {
        &self.1
    }
}
