//! Replies exactly as on the wire.

use std::fmt::{self, Debug, Formatter};

/// One reply. Values that RESP2 and RESP3 distinguish are different variants.
#[derive(Clone, PartialEq)]
pub enum Reply {
    /// `+`
    Simple(String),
    /// `-`, stored without this sign
    Error(String),
    /// `:`
    Int(i64),
    /// `$`
    Bulk(Vec<u8>),
    /// `$-1`, RESP2
    NullBulk,
    /// `*`
    Array(Vec<Reply>),
    /// `*-1`, RESP2
    NullArray,
    /// `_`, RESP3
    Null,
    /// `%`, RESP3
    Map(Vec<(Reply, Reply)>),
    /// `~`, RESP3
    Set(Vec<Reply>),
    /// `#`, RESP3
    Bool(bool),
    /// `,`, RESP3
    Double(f64),
    /// `=`, RESP3, with its format prefix
    Verbatim(Vec<u8>),
    /// `(`, RESP3
    Big(String),
    /// `>`, RESP3
    Push(Vec<Reply>),
}

impl Reply {
    /// A bulk string.
    pub fn bulk(bytes: impl AsRef<[u8]>) -> Self {
        Self::Bulk(bytes.as_ref().to_vec())
    }

    /// The reply `+OK`.
    pub fn ok() -> Self {
        Self::Simple("OK".into())
    }

    /// The number of an integer reply.
    #[track_caller]
    pub fn int(&self) -> i64 {
        match self {
            Self::Int(number) => *number,
            other => panic!("no integer: {other:?}"),
        }
    }

    /// The text of an error reply.
    #[track_caller]
    pub fn error(&self) -> &str {
        match self {
            Self::Error(text) => text,
            other => panic!("no error: {other:?}"),
        }
    }

    /// The first word of an error reply.
    #[track_caller]
    pub fn error_word(&self) -> &str {
        self.error().split(' ').next().unwrap_or_default()
    }

    /// The bytes of a simple, bulk or verbatim string.
    #[track_caller]
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Simple(text) => text.as_bytes(),
            Self::Bulk(bytes) => bytes,
            Self::Verbatim(bytes) => &bytes[4..],
            other => panic!("no string: {other:?}"),
        }
    }

    /// The text of a simple, bulk or verbatim string.
    #[track_caller]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(self.bytes()).into_owned()
    }

    /// The elements of an array, a set or a push.
    #[track_caller]
    pub fn items(&self) -> &[Reply] {
        match self {
            Self::Array(items) | Self::Set(items) | Self::Push(items) => items,
            other => panic!("no array: {other:?}"),
        }
    }

    /// The value of a field of a RESP3 map or a flat RESP2 array.
    #[track_caller]
    pub fn field(&self, name: &str) -> &Reply {
        self.find(name).unwrap_or_else(|| panic!("no field {name}: {self:?}"))
    }

    /// The value of a field, if the map has it.
    #[track_caller]
    pub fn find(&self, name: &str) -> Option<&Reply> {
        let name = Self::bulk(name);
        match self {
            Self::Map(pairs) => pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| value),
            Self::Array(flat) => flat.chunks_exact(2).find(|pair| pair[0] == name).map(|pair| &pair[1]),
            other => panic!("no map: {other:?}"),
        }
    }

    /// The names of the fields of a map, in order.
    #[track_caller]
    pub fn field_names(&self) -> Vec<String> {
        match self {
            Self::Map(pairs) => pairs.iter().map(|(key, _)| key.text()).collect(),
            Self::Array(flat) => flat.chunks_exact(2).map(|pair| pair[0].text()).collect(),
            other => panic!("no map: {other:?}"),
        }
    }

    /// Whether the reply is a null of RESP2 or RESP3.
    pub const fn is_null(&self) -> bool {
        matches!(self, Self::NullBulk | Self::NullArray | Self::Null)
    }
}

impl Debug for Reply {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let list = |out: &mut Formatter<'_>, sign: char, items: &[Reply]| {
            write!(out, "{sign}")?;
            out.debug_list().entries(items).finish()
        };
        match self {
            Self::Simple(text) => write!(out, "+{text}"),
            Self::Error(text) => write!(out, "-{text}"),
            Self::Int(number) => write!(out, ":{number}"),
            Self::Bulk(bytes) => write!(out, "\"{}\"", bytes.escape_ascii()),
            Self::NullBulk => write!(out, "$-1"),
            Self::Array(items) => list(out, '*', items),
            Self::NullArray => write!(out, "*-1"),
            Self::Null => write!(out, "_"),
            Self::Map(pairs) => {
                write!(out, "%")?;
                out.debug_map().entries(pairs.iter().map(|(key, value)| (key, value))).finish()
            }
            Self::Set(items) => list(out, '~', items),
            Self::Bool(truth) => write!(out, "#{truth}"),
            Self::Double(number) => write!(out, ",{number}"),
            Self::Verbatim(bytes) => write!(out, "=\"{}\"", bytes.escape_ascii()),
            Self::Big(digits) => write!(out, "({digits}"),
            Self::Push(items) => list(out, '>', items),
        }
    }
}
