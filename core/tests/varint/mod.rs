//! The numbers in payloads.

/// Appends an unsigned LEB128 varint.
pub(crate) fn varint(payload: &mut Vec<u8>, mut number: u64) {
    while number > 0x7f {
        payload.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    payload.push(number as u8);
}
