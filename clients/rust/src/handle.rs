//! A handle is a string without spaces. With the handle of a tenure, another process continues the tenure.
//!
//! The form is `OWNER:LEASE:SLOTS:WEIGHT:KEY:TOKEN`, followed by `:KEY:TOKEN` for each further key. Owner and keys are
//! hexadecimal. The lease is in milliseconds. SLOTS is 0 for a reader and 1 for an exclusive lock. A weight of 0 means
//! that the program named no weight.

use crate::commands::{Kind, Limit, OwnedKey, Tokens};

pub(crate) fn write(tokens: &Tokens, lease: u64, Kind { limit, weight }: Kind) -> String {
    let slots = match limit {
        Limit::Shared => 0,
        Limit::Exclusive => 1,
        Limit::Slots(slots) => slots,
    };
    let owner = tokens.keys().next().map(|name| to_hex(&name.owner)).unwrap_or_default();
    let keys = tokens.iter().map(|(name, token)| format!(":{}:{token}", to_hex(&name.key)));
    format!("{owner}:{lease}:{slots}:{}{}", weight.unwrap_or(0), keys.collect::<String>())
}

/// Reads the keys with their tokens, the lease and the kind.
pub(crate) fn parse(handle: &str) -> Option<(Tokens, u64, Kind)> {
    let fields: Vec<&str> = handle.split(':').collect();
    let [owner, lease, slots, weight, keys @ ..] = &fields[..] else { return None };
    if keys.is_empty() {
        return None;
    }
    let limit = match slots.parse().ok()? {
        0 => Limit::Shared,
        1 => Limit::Exclusive,
        slots => Limit::Slots(slots),
    };
    let kind = Kind { limit, weight: Some(weight.parse().ok()?).filter(|weight| *weight > 0) };
    let tokens = keys.chunks(2).map(|pair| {
        let [key, token] = pair else { return None };
        let name = OwnedKey { key: from_hex(key)?, owner: from_hex(owner)? };
        Some((name.into(), token.parse().ok()?))
    });
    Some((tokens.collect::<Option<_>>()?, lease.parse().ok()?, kind))
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(hex: &str) -> Option<Vec<u8>> {
    let pairs = (0..hex.len()).step_by(2).map(|at| hex.get(at..at + 2));
    pairs.map(|pair| u8::from_str_radix(pair?, 16).ok()).collect()
}
