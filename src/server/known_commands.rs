//! What the server reports about its commands. The module asks once for each command.

use super::call_reply::{CallReply, ReplyPart};
use super::context::module_context;
use super::shared::Shared;
use lazy_static::lazy_static;
use lockward_core::parse_i64;
use redis_module::raw;
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_int};
use std::rc::Rc;

/// The longest name of a command or subcommand that the module looks up, in bytes. So the module copies no long
/// argument.
pub const LONGEST_NAME: usize = 127;

/// What the server reports about a command.
pub struct KnownCommand {
    /// Whether a module has registered the command.
    pub of_module: bool,
    /// Whether the command has the flag `blocking`. A module's command may block its client without this
    /// flag.
    pub says_it_blocks: bool,
    /// The number of words of a call. A negative number -n means n words or more.
    arity: i64,
    /// The key specifications of the command.
    specs: Vec<KeySpec>,
    /// Whether the command has subcommands.
    has_subcommands: bool,
}

/// Where the keys of a command are, and how the command uses the keys.
struct KeySpec {
    /// The positions of the keys; `None` when only the server can find the keys.
    positions: Option<Positions>,
    /// The flags of the module API; `None` when they depend on the arguments.
    flags: Option<c_int>,
}

/// The first key, the last key, and the step from one key to the next.
struct Positions {
    first: usize,
    last: Last,
    step: usize,
}

/// The last key of a command.
enum Last {
    /// Counts from the first key or, if it is negative, from the last argument.
    At(i64),
    /// The argument at this position is the number of keys.
    CountedBy(usize),
}

lazy_static! {
    static ref KNOWN: Shared<HashMap<Box<[u8]>, Rc<KnownCommand>>> = Shared::new(HashMap::new());
}

/// What the server reports about the command with this name; `None` when there is no such command.
pub fn known_command(name: &CStr) -> Option<Rc<KnownCommand>> {
    /// At most this many commands are remembered.
    const MOST: usize = 1_024;
    if let Some(known) = KNOWN.with(|known| known.get(name.to_bytes()).cloned()) {
        return Some(known);
    }
    let asked = Rc::new(ask(name)?);
    KNOWN.with(|known| {
        if known.len() == MOST {
            known.clear();
        }
        known.insert(name.to_bytes().into(), Rc::clone(&asked));
    });
    Some(asked)
}

/// What the server reports about the command whose name is the first word, or about its subcommand.
pub fn known_command_or_sub(words: &[&[u8]]) -> Option<Rc<KnownCommand>> {
    let (name, rest) = words.split_first()?;
    let known = known_command(&CString::new(*name).ok()?)?;
    match rest.first().filter(|sub| known.has_subcommands && sub.len() <= LONGEST_NAME) {
        Some(sub) => known_command(&CString::new([*name, *sub].join(&b'|')).ok()?),
        None => Some(known),
    }
}

impl KnownCommand {
    /// Whether a call can have this many words.
    pub fn takes(&self, count: usize) -> bool {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        if self.arity < 0 { count >= self.arity.saturating_neg() } else { count == self.arity }
    }

    /// For each key of a call, its position and its flags. `None` when only the server can find the keys.
    pub fn keys(&self, words: &[&[u8]]) -> Option<Vec<(usize, c_int)>> {
        let mut keys = Vec::new();
        for spec in &self.specs {
            let (positions, flags) = (spec.positions.as_ref()?, spec.flags?);
            keys.extend(positions.of_keys(words).into_iter().flatten().map(|position| (position, flags)));
        }
        Some(keys)
    }

    /// The flags of a key for which the server has named no flags. These are the flags of the key specification that
    /// begins at this position, or of the last key specification.
    pub fn flags_at(&self, position: usize) -> c_int {
        let begins = |spec: &&KeySpec| spec.positions.as_ref().is_some_and(|keys| keys.first == position);
        let spec = self.specs.iter().find(begins).or(self.specs.last());
        spec.and_then(|spec| spec.flags).unwrap_or_default()
    }
}

impl Positions {
    /// The positions of the keys of a call; `None` if the number of keys is wrong.
    fn of_keys(&self, words: &[&[u8]]) -> Option<impl Iterator<Item = usize> + use<>> {
        let end = words.len().saturating_sub(1);
        let last = match self.last {
            Last::At(last) => match usize::try_from(last) {
                Ok(after) => self.first.saturating_add(after).min(end),
                Err(_) => words.len().checked_sub(usize::try_from(last.unsigned_abs()).ok()?)?,
            },
            Last::CountedBy(position) => {
                let steps = usize::try_from(parse_i64(words.get(position)?)?).ok()?.checked_sub(1)?;
                steps.checked_mul(self.step)?.checked_add(self.first).filter(|last| *last <= end)?
            }
        };
        Some((self.first..=last).step_by(self.step.max(1)))
    }
}

fn ask(name: &CStr) -> Option<KnownCommand> {
    let context = module_context().as_ptr();
    // SAFETY: the arguments match the mode: two texts that end in NUL. `CallReply` owns the reply.
    let reply = unsafe {
        CallReply::new(api!(RedisModule_Call(
            context,
            c"COMMAND".as_ptr(),
            c"Ecc".as_ptr(),
            c"INFO".as_ptr(),
            name.as_ptr(),
        )))
    }?;
    let info = reply.root().at(0)?;
    let has = |flag: &[u8]| info.at(2).is_some_and(|flags| flags.parts().any(|known| known.text() == flag));
    Some(KnownCommand {
        of_module: has(b"module"),
        says_it_blocks: has(b"blocking"),
        arity: info.at(1)?.number(),
        specs: info.at(8)?.parts().map(key_spec).collect(),
        has_subcommands: info.at(9)?.at(0).is_some(),
    })
}

fn key_spec(spec: ReplyPart<'_>) -> KeySpec {
    let position = |part: ReplyPart<'_>, field: &[u8]| usize::try_from(part.field(field)?.number()).ok();
    let positions = || {
        let (begin, find) = (spec.field(b"begin_search")?, spec.field(b"find_keys")?);
        if begin.field(b"type")?.text() != b"index" {
            return None;
        }
        let begin = position(begin.field(b"spec")?, b"index")?;
        let (kind, find) = (find.field(b"type")?.text(), find.field(b"spec")?);
        let step = position(find, b"keystep")?;
        if kind == b"keynum" {
            let first = begin.checked_add(position(find, b"firstkey")?)?;
            let count = begin.checked_add(position(find, b"keynumidx")?)?;
            return Some(Positions { first, last: Last::CountedBy(count), step });
        }
        // A limit above 1 means that only a part of the arguments are keys.
        let is_known = kind == b"range" && find.field(b"limit")?.number() <= 1;
        is_known.then_some(Positions { first: begin, last: Last::At(find.field(b"lastkey")?.number()), step })
    };
    let flags = || {
        let mut flags = 0;
        for flag in spec.field(b"flags")?.parts() {
            flags |= flag_of(flag.text())?;
        }
        c_int::try_from(flags).ok()
    };
    KeySpec { positions: positions(), flags: flags() }
}

/// The number of a flag in the module API. `None` for the flag that marks a specification as incomplete.
fn flag_of(text: &[u8]) -> Option<u32> {
    Some(match text {
        b"RO" => raw::REDISMODULE_CMD_KEY_RO,
        b"RW" => raw::REDISMODULE_CMD_KEY_RW,
        b"OW" => raw::REDISMODULE_CMD_KEY_OW,
        b"RM" => raw::REDISMODULE_CMD_KEY_RM,
        b"access" => raw::REDISMODULE_CMD_KEY_ACCESS,
        b"update" => raw::REDISMODULE_CMD_KEY_UPDATE,
        b"insert" => raw::REDISMODULE_CMD_KEY_INSERT,
        b"delete" => raw::REDISMODULE_CMD_KEY_DELETE,
        b"not_key" => raw::REDISMODULE_CMD_KEY_NOT_KEY,
        _ => return None,
    })
}
