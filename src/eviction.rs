//! A word of warning where the server may evict locks.

use crate::server::{Level, info, log};

/// The setting that decides.
pub const POLICY: &[u8] = b"maxmemory-policy";

/// Warns, when the server's policy lets it evict keys. It need not have a limit yet: with the policy it is decided what
/// becomes of locks once there is one. As every lock has a TTL, each policy but one takes locks too.
pub fn warn() {
    let Some(policy) = info::text(c"memory", c"maxmemory_policy") else { return };
    if policy != b"noeviction" {
        log(
            Level::Warning,
            &format!(
                "maxmemory-policy is {}: at maxmemory the server evicts locks that are held. They are not lost, but kept \
                 in memory beside the keyspace, so that little memory is gained. Set maxmemory-policy to noeviction, or \
                 keep locks on a server of their own.",
                policy.escape_ascii()
            ),
        );
    }
}
