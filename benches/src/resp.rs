//! Replies as they come over the wire, in RESP2 and RESP3.

/// How deep replies may be nested.
const DEEPEST: usize = 8;

/// A reply, or what the server sends without being asked.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// `+`: a status, such as OK.
    Status(String),
    /// `-` or `!`: an error.
    Error(String),
    /// `:` or `(`: a whole number; one of more than 64 bits is an error of the protocol.
    Number(i64),
    /// `,`: any other number.
    Double(f64),
    /// `#`: true or false.
    Boolean(bool),
    /// `$` or `=`: bytes.
    Bulk(Vec<u8>),
    /// `*`, `~` or `%`: an array, a set, or a map as its keys and values in turn.
    Array(Vec<Reply>),
    /// `>`: not asked for: a message to a subscriber.
    Push(Vec<Reply>),
    /// `_`, `$-1` or `*-1`: nothing.
    Null,
}

/// These bytes are no reply.
#[derive(Debug, PartialEq, Eq)]
pub struct NoReply(pub String);

impl Reply {
    /// The text of a bulk string or a status.
    pub fn text(&self) -> Option<String> {
        if let Self::Status(text) = self {
            Some(text.clone())
        } else if let Self::Bulk(bytes) = self {
            Some(String::from_utf8_lossy(bytes).into_owned())
        } else {
            None
        }
    }
}

/// Reads the first reply of `bytes`, and says how many bytes it takes. `None`: it has not come to its end.
pub fn decode(bytes: &[u8]) -> Result<Option<(Reply, usize)>, NoReply> {
    let mut reader = Reader { bytes, at: 0 };
    match reader.reply(0) {
        Ok(reply) => Ok(Some((reply, reader.at))),
        Err(Stop::Short) => Ok(None),
        Err(Stop::Malformed) => Err(NoReply(bytes[..bytes.len().min(80)].escape_ascii().to_string())),
    }
}

/// Why a reply cannot be read.
enum Stop {
    Short,
    Malformed,
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn reply(&mut self, depth: usize) -> Result<Reply, Stop> {
        let line = self.line()?;
        let (kind, line) = line.split_first().ok_or(Stop::Malformed)?;
        let text = || String::from_utf8_lossy(line).into_owned();
        Ok(match kind {
            b'+' => Reply::Status(text()),
            b'-' => Reply::Error(text()),
            b':' | b'(' => Reply::Number(number(line)?),
            b',' => Reply::Double(text().parse().map_err(|_| Stop::Malformed)?),
            b'#' => Reply::Boolean(line == b"t"),
            b'_' => Reply::Null,
            b'$' => self.bulk(line)?.map_or(Reply::Null, |bytes| Reply::Bulk(bytes.to_vec())),
            b'=' => Reply::Bulk(
                self.bulk(line)?.and_then(|bytes| bytes.get(4..)).ok_or(Stop::Malformed)?.to_vec(),
            ),
            b'!' => {
                Reply::Error(String::from_utf8_lossy(self.bulk(line)?.ok_or(Stop::Malformed)?).into_owned())
            }
            b'*' if line == b"-1" => Reply::Null,
            b'*' | b'~' => Reply::Array(self.replies(line, 1, depth)?),
            b'%' => Reply::Array(self.replies(line, 2, depth)?),
            b'>' => Reply::Push(self.replies(line, 1, depth)?),
            b'|' => {
                self.replies(line, 2, depth)?; // attributes of what follows
                self.reply(depth)?
            }
            _ => return Err(Stop::Malformed),
        })
    }

    fn replies(&mut self, line: &[u8], each: usize, depth: usize) -> Result<Vec<Reply>, Stop> {
        let count = usize::try_from(number(line)?).map_err(|_| Stop::Malformed)?;
        if depth == DEEPEST {
            return Err(Stop::Malformed);
        }
        // No more is set aside than can be there: each reply takes three bytes at least.
        let mut replies =
            Vec::with_capacity(count.saturating_mul(each).min((self.bytes.len() - self.at) / 3));
        for _ in 0..count.saturating_mul(each) {
            replies.push(self.reply(depth + 1)?);
        }
        Ok(replies)
    }

    fn bulk(&mut self, line: &[u8]) -> Result<Option<&'a [u8]>, Stop> {
        if line == b"-1" {
            return Ok(None);
        }
        let len = usize::try_from(number(line)?).map_err(|_| Stop::Malformed)?;
        let end = self.at.checked_add(len).ok_or(Stop::Malformed)?;
        let bytes = self.bytes.get(self.at..end).ok_or(Stop::Short)?;
        match self.bytes.get(end..end + 2) {
            None => Err(Stop::Short),
            Some(b"\r\n") => {
                self.at = end + 2;
                Ok(Some(bytes))
            }
            Some(_) => Err(Stop::Malformed),
        }
    }

    /// The bytes up to the end of the line.
    fn line(&mut self) -> Result<&'a [u8], Stop> {
        let rest = &self.bytes[self.at..];
        let end = rest.iter().position(|byte| *byte == b'\n').ok_or(Stop::Short)?;
        self.at += end + 1;
        rest[..end].strip_suffix(b"\r").ok_or(Stop::Malformed)
    }
}

fn number(line: &[u8]) -> Result<i64, Stop> {
    str::from_utf8(line).ok().and_then(|text| text.parse().ok()).ok_or(Stop::Malformed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Reply {
        let (reply, len) = decode(bytes).unwrap().unwrap();
        assert_eq!(len, bytes.len());
        for short in 0..len {
            assert_eq!(decode(&bytes[..short]), Ok(None), "{short} bytes of it");
        }
        reply
    }

    #[test]
    fn replies_of_both_protocols_are_read_and_none_before_its_end() {
        let bulk = |text: &str| Reply::Bulk(text.into());
        let table = [
            (&b"+OK\r\n"[..], Reply::Status("OK".into())),
            (b"-NOTHELD it is free\r\n", Reply::Error("NOTHELD it is free".into())),
            (b"!5\r\nERR x\r\n", Reply::Error("ERR x".into())),
            (b":-12\r\n", Reply::Number(-12)),
            (b",1.5\r\n", Reply::Double(1.5)),
            (b"#t\r\n", Reply::Boolean(true)),
            (b"_\r\n", Reply::Null),
            (b"$-1\r\n", Reply::Null),
            (b"*-1\r\n", Reply::Null),
            (b"$4\r\na\r\nb\r\n", bulk("a\r\nb")),
            (b"=5\r\ntxt:a\r\n", bulk("a")),
            (
                b"*2\r\n:1\r\n*1\r\n$1\r\nx\r\n",
                Reply::Array(vec![Reply::Number(1), Reply::Array(vec![bulk("x")])]),
            ),
            (b"%1\r\n+a\r\n:1\r\n", Reply::Array(vec![Reply::Status("a".into()), Reply::Number(1)])),
            (b">2\r\n+message\r\n$0\r\n\r\n", Reply::Push(vec![Reply::Status("message".into()), bulk("")])),
            (b"|1\r\n+ttl\r\n:3\r\n+OK\r\n", Reply::Status("OK".into())),
        ];
        for (bytes, reply) in table {
            assert_eq!(read(bytes), reply, "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn what_is_no_reply_is_refused() {
        let deep = b"*1\r\n".repeat(20);
        for bytes in [&b"hello\r\n"[..], b":12x\r\n", b"$2\r\nabc\r\n", b"*-2\r\n", b"+OK\n", b"\r\n", &deep]
        {
            assert!(decode(bytes).is_err(), "{}", bytes.escape_ascii());
        }
    }
}
