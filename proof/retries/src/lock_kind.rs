//! The kinds of lock under test.

/// A lease that is much longer than a run, in milliseconds.
pub(crate) const LEASE: i64 = 36_000_000;

/// A kind of lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockKind {
    /// Lockward with HOLDS, as documented.
    WithHolds,
    /// Lockward without HOLDS: a control, which must miscount.
    WithoutHolds,
}

impl LockKind {
    pub(crate) const ALL: [Self; 2] = [Self::WithHolds, Self::WithoutHolds];

    /// The prefix of the keys.
    pub(crate) const fn prefix(self) -> &'static str {
        match self {
            Self::WithHolds => "with-holds",
            Self::WithoutHolds => "without-holds",
        }
    }

    /// The command that adds a hold, so that the owner has this number of holds.
    pub(crate) fn acquire(self, key: &str, owner: &str, holds: i64, waits: bool) -> String {
        let block = if waits { " BLOCK 600000" } else { "" };
        self.with_holds(format!("LOCK.ACQUIRE {key} {owner} PX {LEASE}{block}"), holds)
    }

    /// The command that releases one hold and leaves `holds`, with TOKEN if `token` is set.
    pub(crate) fn release(self, key: &str, owner: &str, holds: i64, token: Option<i64>) -> String {
        let token = token.map(|token| format!(" TOKEN {token}")).unwrap_or_default();
        self.with_holds(format!("LOCK.RELEASE {key} {owner}{token}"), holds)
    }

    /// The command that renews the lease of a tenure with `holds` holds.
    pub(crate) fn renew(self, key: &str, owner: &str, holds: i64, token: i64) -> String {
        self.with_holds(format!("LOCK.RENEW {key} {owner} PX {LEASE} TOKEN {token}"), holds)
    }

    fn with_holds(self, command: String, holds: i64) -> String {
        match self {
            Self::WithHolds => format!("{command} HOLDS {holds}"),
            Self::WithoutHolds => command,
        }
    }
}
