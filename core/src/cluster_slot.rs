//! The slot of a key in a Redis cluster: CRC16 (XMODEM) of the key or of its hash tag, modulo 16,384, as in the cluster
//! specification.

/// A key of two bytes in the same slot as a longer key. To learn whether a node serves a slot, the module asks about
/// the short key, because the server needs more time for a longer key.
pub type SlotKey = [u8; 2];

const SLOTS: u16 = 16_384;

const TABLE: [u16; 256] = table();

#[allow(clippy::indexing_slicing, clippy::arithmetic_side_effects, reason = "runs in the compiler")]
const fn table() -> [u16; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
}

fn slot_of(hashed: &[u8]) -> u16 {
    let crc = hashed.iter().fold(0u16, |crc, byte| {
        let [high, _] = crc.to_be_bytes();
        (crc << 8) ^ TABLE.get(usize::from(high ^ byte)).copied().unwrap_or_default()
    });
    crc % SLOTS
}

/// The part of a key that decides its slot: the bytes between the first `{` and the next `}`, or the whole key if there
/// are no such bytes.
fn hash_tag(key: &[u8]) -> &[u8] {
    let tag = || {
        let (_, rest) = key.split_at_checked(key.iter().position(|byte| *byte == b'{')?.checked_add(1)?)?;
        rest.get(..rest.iter().position(|byte| *byte == b'}')?)
    };
    tag().filter(|tag| !tag.is_empty()).unwrap_or(key)
}

/// A short key in the same slot as `key`. The search takes about 20 microseconds, and longer for a long
/// `key`.
#[must_use]
pub fn slot_key(key: &[u8]) -> SlotKey {
    let slot = slot_of(hash_tag(key));
    // Each of the 65,536 keys of two bytes has its own CRC, so each slot has four such keys.
    (0..=u16::MAX).map(u16::to_be_bytes).find(|key| slot_of(key) == slot).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slot_of_a_key_is_that_of_its_hash_tag() {
        for (key, slot) in [("foo", 12_182), ("bar", 5_061), ("123456789", 0x31c3), ("", 0)] {
            assert_eq!(slot_of(hash_tag(key.as_bytes())), slot, "{key}");
        }
        for (key, tag) in
            [("{a}b", "a"), ("x{a}{b}", "a"), ("{}b", "{}b"), ("{a", "{a"), ("a}", "a}"), ("{{a}}", "{a")]
        {
            assert_eq!(hash_tag(key.as_bytes()), tag.as_bytes(), "{key}");
        }
    }

    #[test]
    fn every_slot_has_a_short_key() {
        for number in 0..2_000 {
            let key = number.to_string();
            let short = slot_key(key.as_bytes());
            assert_eq!(slot_of(hash_tag(&short)), slot_of(key.as_bytes()), "{key}");
        }
    }
}
