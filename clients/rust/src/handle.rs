//! A handle is a string without spaces. With it another process continues a tenure.
//!
//! `KEY:OWNER:TOKEN:HOLDS:LEASE:SLOTS:WEIGHT`, and the next key after a comma. Key and owner are hexadecimal, the lease is in
//! milliseconds. Slots are empty for a reader and 1 for an exclusive lock. An empty weight is the default.

use crate::commands::{Kind, Limit, OwnedKey, Terms};
use crate::tenure::Tenure;
use std::sync::Arc;

pub(crate) fn write(tenures: &[Arc<Tenure>]) -> String {
    let parts = tenures.iter().map(|tenure| {
        let Terms { token, holds, lease, kind: Kind { limit, weight } } = tenure.terms();
        let slots = match limit {
            Limit::Shared => 0,
            Limit::Exclusive => 1,
            Limit::Slots(slots) => slots,
        };
        let (key, owner) = (to_hex(&tenure.name.key), to_hex(&tenure.name.owner));
        format!("{key}:{owner}:{token}:{holds}:{lease}:{slots}:{}", weight.unwrap_or(0))
    });
    parts.collect::<Vec<_>>().join(",")
}

/// Reads the tenures in a handle.
pub(crate) fn parse(handle: &str) -> Option<Vec<(OwnedKey, Terms)>> {
    let tenures = handle.split(',').map(|part| {
        let fields: Vec<&str> = part.split(':').collect();
        let [key, owner, token, holds, lease, slots, weight] = fields[..] else { return None };
        let limit = match slots.parse().ok()? {
            0 => Limit::Shared,
            1 => Limit::Exclusive,
            slots => Limit::Slots(slots),
        };
        let kind = Kind { limit, weight: Some(weight.parse().ok()?).filter(|weight| *weight > 0) };
        let (token, holds) = (token.parse().ok()?, holds.parse().ok()?);
        let terms = Terms { token, holds, kind, lease: lease.parse().ok()? };
        Some((OwnedKey { key: from_hex(key)?, owner: from_hex(owner)? }, terms))
    });
    tenures.collect()
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(hex: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> =
        hex.chars().map(|c| c.to_digit(16).and_then(|digit| digit.try_into().ok())).collect();
    Some(digits?.chunks(2).map(|pair| pair.iter().fold(0, |byte, digit| byte << 4 | digit)).collect())
}
