//! A warning in the log when the server may evict locks.

use crate::server::{info, warn};

/// The setting of the server that decides whether keys are evicted.
pub const POLICY: &[u8] = b"maxmemory-policy";

/// Warns if the policy of the server allows evictions. The warning is also logged when there is no memory limit,
/// because a limit may be set later. Every lock has a TTL, so every policy except noeviction evicts locks too.
pub fn check() {
    let Some(policy) = info::text(c"memory", c"maxmemory_policy") else { return };
    if policy != b"noeviction" {
        warn(&format!(
            "maxmemory-policy is {}: at maxmemory the server evicts locks that are held. The module keeps these \
                 locks in memory beside the keyspace, so an eviction frees little memory. Set maxmemory-policy to \
                 noeviction, or keep the locks on a separate server.",
            policy.escape_ascii()
        ));
    }
}
