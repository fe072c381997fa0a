//! The keyspace events of locks.

use super::fact::What;

/// The classes that a watcher needs: keyspace channels (`K`), the events of the module (`d`), ended leases (`x`), and
/// DEL, RENAME, MOVE and RESTORE (`g`).
const NEEDED: &str = "Kdxg";

/// The needed classes that a value of the setting `notify-keyspace-events` lacks. Empty if none is missing.
pub(super) fn missing(value: &str) -> String {
    // `A` stands for all needed classes except `K`.
    let has = |class: char| value.contains(class) || (value.contains('A') && class != 'K');
    NEEDED.chars().filter(|class| !has(*class)).collect()
}

/// What an event says about a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Acquired,
    /// A hold was released: the last hold, or one of several holds.
    Released,
    /// A lease ended. The event may also mean that the server only dropped the key, and the module kept the tenure.
    Expired,
    /// The key was removed or replaced, for this reason.
    Broken(&'static str),
    /// The key came from another name, from another database or from a dump.
    Arrived,
    /// The event says nothing about the beginnings and ends of tenures.
    Other,
}

impl Change {
    /// The change that the event of this name reports.
    pub(super) fn of(event: &[u8]) -> Self {
        match event {
            b"lock.acquired" => Self::Acquired,
            b"lock.released" => Self::Released,
            b"expired" => Self::Expired,
            b"del" => Self::Broken("deleted"),
            b"rename_from" => Self::Broken("renamed"),
            b"move_from" => Self::Broken("moved to another database"),
            b"rename_to" | b"move_to" | b"restore" => Self::Arrived,
            b"lock.renewed" | b"expire" | b"persist" | b"evicted" | b"new" | b"keymiss" => Self::Other,
            // Events of other data types mean that another value has replaced the lock.
            _ => Self::OVERWRITTEN,
        }
    }

    pub(super) const OVERWRITTEN: Self = Self::Broken("overwritten");

    /// How the change ends a tenure, and for which reason. `None` if it ends none.
    pub(super) fn end(self) -> Option<(What, Option<&'static str>)> {
        match self {
            Self::Released => Some((What::Released, None)),
            Self::Expired => Some((What::Lost, Some("lease over"))),
            Self::Broken(reason) => Some((What::Broken, Some(reason))),
            Self::Arrived => Self::OVERWRITTEN.end(),
            Self::Acquired | Self::Other => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_finds_the_missing_classes() {
        for (value, lacks) in
            [("", "Kdxg"), ("Kdxg", ""), ("AK", ""), ("AE", "K"), ("g$KE", "dx"), ("AKEnm", "")]
        {
            assert_eq!(missing(value), lacks, "{value}");
        }
    }
}
