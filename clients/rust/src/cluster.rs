//! Slots, redirects and nodes of a cluster, as keys and replies tell them.

use crate::address::with_host_and_port;
use crate::commands::read;
use crate::error::Error;
use redis::{ConnectionAddr, ConnectionInfo, Value};

/// Where a server sends a request instead.
pub(crate) struct Redirect {
    pub(crate) slot: u16,
    pub(crate) node: ConnectionInfo,
    /// ASK: this request only. Otherwise MOVED: all requests for the slot.
    pub(crate) is_ask: bool,
}

/// Reads a redirect from the error that the node `from` has replied: `MOVED 3999 127.0.0.1:6381`.
pub(crate) fn redirect(error: &Error, from: &ConnectionInfo) -> Option<Redirect> {
    let Error::Server { code, message } = error else { return None };
    let (slot, address) = message.split_once(' ')?;
    let (host, port) = address.rsplit_once(':')?;
    let node = with_host_and_port(from, host_or_same(Some(host), from), port.parse().ok()?);
    Some(Redirect { slot: slot.parse().ok()?, node, is_ask: code == "ASK" })
}

/// The slot of a key: the hash of what is between the first `{` and the next `}`, or of the whole key.
pub(crate) fn slot_of(key: &[u8]) -> u16 {
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let rest = key.get(open + 1..)?;
        let close = rest.iter().position(|byte| *byte == b'}')?;
        rest.get(..close).filter(|tag| !tag.is_empty())
    });
    crc16::State::<crc16::XMODEM>::calculate(tag.unwrap_or(key)) % 16_384
}

/// The primaries in the reply to CLUSTER SLOTS of the node `from`, each once.
pub(crate) fn read_primaries(reply: Value, from: &ConnectionInfo) -> Result<Vec<ConnectionInfo>, Error> {
    let ranges: Vec<Vec<Value>> = read(reply)?;
    let mut primaries: Vec<ConnectionInfo> = Vec::new();
    for range in ranges {
        let Some(primary) = range.into_iter().nth(2) else { continue };
        let parts: Vec<Value> = read(primary)?;
        let mut parts = parts.into_iter();
        let (Some(host), Some(port)) = (parts.next(), parts.next()) else { continue };
        let (host, port): (Option<String>, u16) = (read(host)?, read(port)?);
        let info = with_host_and_port(from, host_or_same(host.as_deref(), from), port);
        if primaries.iter().all(|other| other.addr() != info.addr()) {
            primaries.push(info);
        }
    }
    Ok(primaries)
}

/// The host in a reply of the node `from`. A node that does not know its own name sends none: it is the host of `from`.
fn host_or_same<'a>(host: Option<&'a str>, from: &'a ConnectionInfo) -> &'a str {
    match (host, from.addr()) {
        (None | Some("" | "?"), ConnectionAddr::Tcp(same, _) | ConnectionAddr::TcpTls { host: same, .. }) => {
            same
        }
        (host, _) => host.unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::{host_or_same, slot_of};
    use redis::ConnectionInfo;

    #[test]
    fn a_node_that_sends_no_host_is_at_the_host_that_was_asked() {
        let from: ConnectionInfo = "redis://there:7000".parse().unwrap();
        for (sent, host) in
            [(None, "there"), (Some(""), "there"), (Some("?"), "there"), (Some("other"), "other")]
        {
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
