//! Handles: what another process needs to go on with a tenure, as a string without spaces.
//!
//! `KEY:OWNER:TOKEN:HOLDS:LEASE:KIND`, and the next key after a comma. Key and owner are hexadecimal, the lease is in
//! milliseconds, and the kind is `exclusive`, `shared`, `SLOTS` or `SLOTS/WEIGHT`.

use crate::commands::{Kind, Limit, OwnedKey};
use crate::tenure::{Tenure, Terms};
use crate::time::lease_end;
use std::fmt::Write;
use std::time::Instant;

pub(crate) fn write<'a>(tenures: impl Iterator<Item = &'a Tenure>) -> String {
    let parts = tenures.map(|tenure| {
        let Kind { limit, weight } = tenure.kind();
        let kind = match (limit, weight) {
            (Limit::Exclusive, _) => "exclusive".to_owned(),
            (Limit::Shared, _) => "shared".to_owned(),
            (Limit::Slots(slots), None) => slots.to_string(),
            (Limit::Slots(slots), Some(weight)) => format!("{slots}/{weight}"),
        };
        let (key, owner) = (to_hex(&tenure.name.key), to_hex(&tenure.name.owner));
        format!("{key}:{owner}:{}:{}:{}:{kind}", tenure.token, tenure.holds, tenure.lease())
    });
    parts.collect::<Vec<_>>().join(",")
}

/// Reads the tenures in a handle. Their leases count from now, until they are renewed.
pub(crate) fn parse(handle: &str) -> Option<Vec<(OwnedKey, Terms)>> {
    let tenures = handle.split(',').map(|part| {
        let mut fields = part.split(':');
        let name = OwnedKey { key: from_hex(fields.next()?)?, owner: from_hex(fields.next()?)? };
        let (token, holds) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        let lease = fields.next()?.parse().ok()?;
        let (limit, weight) = match fields.next()? {
            "exclusive" => (Limit::Exclusive, None),
            "shared" => (Limit::Shared, None),
            slots => match slots.split_once('/') {
                Some((slots, weight)) => (Limit::Slots(slots.parse().ok()?), Some(weight.parse().ok()?)),
                None => (Limit::Slots(slots.parse().ok()?), None),
            },
        };
        let kind = Kind { limit, weight };
        let deadline = lease_end(lease, Instant::now());
        Some((name, Terms { token, holds, kind, lease, deadline, is_renewed: true, hold_end: None }))
    });
    tenures.collect()
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

fn from_hex(hex: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> =
        hex.chars().map(|c| c.to_digit(16).and_then(|digit| digit.try_into().ok())).collect();
    Some(digits?.chunks(2).map(|pair| pair.iter().fold(0, |byte, digit| byte << 4 | digit)).collect())
}
