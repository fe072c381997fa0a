//! Slots of a cluster, and the hosts in its replies.

use redis::{ConnectionAddr, ConnectionInfo};

/// The slot of a key: the hash of what is between the first `{` and the next `}`, or of the whole key.
pub(crate) fn slot_of(key: &[u8]) -> u16 {
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let rest = key.get(open + 1..)?;
        let close = rest.iter().position(|byte| *byte == b'}')?;
        rest.get(..close).filter(|tag| !tag.is_empty())
    });
    crc16::State::<crc16::XMODEM>::calculate(tag.unwrap_or(key)) % 16_384
}

/// The host in a reply of the node `from`. A node that does not know its own name sends none: it is the host of `from`.
pub(crate) fn host_or_same<'a>(host: &'a str, from: &'a ConnectionInfo) -> &'a str {
    match (host, from.addr()) {
        ("" | "?", ConnectionAddr::Tcp(same, _) | ConnectionAddr::TcpTls { host: same, .. }) => same,
        (host, _) => host,
    }
}

#[cfg(test)]
mod tests {
    use super::{host_or_same, slot_of};
    use redis::ConnectionInfo;

    #[test]
    fn a_node_that_sends_no_host_is_at_the_host_that_was_asked() {
        let from: ConnectionInfo = "redis://there:7000".parse().unwrap();
        for (sent, host) in [("", "there"), ("?", "there"), ("other", "other")] {
            assert_eq!(host_or_same(sent, &from), host, "{sent:?}");
        }
    }

    #[test]
    fn slots_are_those_of_cluster_keyslot() {
        let table: [(&[u8], u16); 7] = [
            (b"123456789", 12739),
            (b"k", 7629),
            (b"{k}:a", 7629),
            (b"a{k}{b}", 7629),
            (b"{}k", 2865),
            (b"{k", 2414),
            (b"", 0),
        ];
        for (key, slot) in table {
            assert_eq!(slot_of(key), slot, "{}", String::from_utf8_lossy(key));
        }
    }
}
