//! RESP2 and RESP3: encodes commands and decodes replies.

use crate::reply::Reply;

/// How deep arrays and other lists in a reply may be nested.
const DEEPEST: usize = 32;

/// The error for bytes that are no reply, with the reason.
#[derive(Debug, PartialEq, Eq)]
pub struct NoReply(pub String);

/// A command as it goes over the wire.
pub fn encode<A: AsRef<[u8]>>(arguments: &[A]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", arguments.len()).into_bytes();
    for argument in arguments {
        let argument = argument.as_ref();
        bytes.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
        bytes.extend_from_slice(argument);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

/// Decodes the first reply in `bytes`, and returns it with its length. `None` if the reply is incomplete.
///
/// # Errors
/// [`NoReply`] if the bytes cannot be the beginning of a RESP reply.
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
        Ok(match kind {
            b'+' => Reply::Simple(text(line)),
            b'-' => Reply::Error(text(line)),
            b':' => Reply::Int(number(line)?),
            b'$' if line == b"-1" => Reply::NullBulk,
            b'$' => Reply::Bulk(self.bulk(line)?.to_vec()),
            b'*' if line == b"-1" => Reply::NullArray,
            b'*' => Reply::Array(self.replies(line, depth)?),
            b'_' => Reply::Null,
            b'%' => Reply::Map(self.pairs(line, depth)?),
            b'~' => Reply::Set(self.replies(line, depth)?),
            b'#' => Reply::Bool(line == b"t"),
            b',' => Reply::Double(text(line).parse().map_err(|_| Stop::Malformed)?),
            b'=' => Reply::Verbatim(self.bulk(line)?.to_vec()),
            b'(' => Reply::Big(text(line)),
            b'!' => Reply::Error(text(self.bulk(line)?)),
            b'>' => Reply::Push(self.replies(line, depth)?),
            b'|' => {
                self.pairs(line, depth)?; // attributes of the reply that follows
                self.reply(depth)?
            }
            _ => return Err(Stop::Malformed),
        })
    }

    fn replies(&mut self, line: &[u8], depth: usize) -> Result<Vec<Reply>, Stop> {
        let count = length(line)?;
        if depth == DEEPEST {
            return Err(Stop::Malformed);
        }
        // A malformed reply may claim an absurd `count`. So the list reserves room only for one reply per three bytes
        // of input, because no reply is shorter.
        let mut replies = Vec::with_capacity(count.min((self.bytes.len() - self.at) / 3));
        for _ in 0..count {
            replies.push(self.reply(depth + 1)?);
        }
        Ok(replies)
    }

    fn pairs(&mut self, line: &[u8], depth: usize) -> Result<Vec<(Reply, Reply)>, Stop> {
        if depth == DEEPEST {
            return Err(Stop::Malformed);
        }
        (0..length(line)?).map(|_| Ok((self.reply(depth + 1)?, self.reply(depth + 1)?))).collect()
    }

    fn bulk(&mut self, line: &[u8]) -> Result<&'a [u8], Stop> {
        let end = self.at.checked_add(length(line)?).ok_or(Stop::Malformed)?;
        let bytes = self.bytes.get(self.at..end).ok_or(Stop::Short)?;
        match self.bytes.get(end..end + 2) {
            None => Err(Stop::Short),
            Some(b"\r\n") => {
                self.at = end + 2;
                Ok(bytes)
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

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn number(line: &[u8]) -> Result<i64, Stop> {
    str::from_utf8(line).ok().and_then(|text| text.parse().ok()).ok_or(Stop::Malformed)
}

fn length(line: &[u8]) -> Result<usize, Stop> {
    usize::try_from(number(line)?).map_err(|_| Stop::Malformed)
}
