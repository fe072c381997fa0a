//! Commands: how they are registered, and how the server calls them.

use super::{Callback, catch_panic};
use crate::arguments::Arguments;
use crate::errors::Error;
use crate::server::{Context, Level, api, log};
use redis_module::raw;
use std::ffi::{CStr, CString, c_int};
use std::{mem, ptr, slice};

/// One command: what the server is told of it, and what it does.
pub trait Command {
    /// Its name, in lower case.
    const NAME: &'static CStr;
    /// Its flags, as `RM_CreateCommand` names them.
    const FLAGS: &'static CStr;
    /// How many arguments it takes, its name included; negative: at least so many.
    const ARITY: c_int;
    /// How it uses its key, the first argument; `None` when it has none.
    const KEY: Option<KeyUse>;
    /// Its arguments, as COMMAND DOCS and the hints of redis-cli show them.
    const ARGUMENTS: &'static [Argument];
    /// Its ACL categories, on servers that let a module say so. [`OWN_CATEGORY`] is left out where there is none.
    const CATEGORIES: &'static [&'static str];
    /// What clients and proxies should know of it, as COMMAND INFO names it; words between spaces.
    const TIPS: &'static CStr = c"";
    /// What it does, in one sentence.
    const SUMMARY: &'static CStr;
    /// What it costs.
    const COMPLEXITY: &'static CStr;

    /// Parses the whole request, does it, and replies. Replies nothing when it fails.
    ///
    /// # Errors
    /// What the client is told.
    fn run(context: Context, arguments: Arguments<'_>) -> Result<(), Error>;
}

/// The ACL category of all that clients are meant to call.
pub const OWN_CATEGORY: &str = "lock";

/// One argument of a command, as it is documented.
#[derive(Clone, Copy, Debug)]
pub struct Argument {
    name: &'static CStr,
    kind: Kind,
    option: Option<&'static CStr>,
    optional: bool,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Key,
    Text,
    Number,
    CommandSource,
    OneOf(&'static [Argument]),
}

impl Argument {
    /// The key, which comes first.
    pub const KEY: Self = Self { name: c"key", kind: Kind::Key, option: None, optional: false };

    /// A string that must be given.
    pub const fn text(name: &'static CStr) -> Self {
        Self { name, kind: Kind::Text, option: None, optional: false }
    }

    /// A number that may be given behind the option's name.
    pub const fn number(name: &'static CStr, option: &'static CStr) -> Self {
        Self { name, kind: Kind::Number, option: Some(option), optional: true }
    }

    /// An option without a value.
    pub const fn word(name: &'static CStr, option: &'static CStr) -> Self {
        Self { name, kind: Kind::CommandSource, option: Some(option), optional: true }
    }

    /// One of several that may be given.
    pub const fn one_of(name: &'static CStr, choices: &'static [Self]) -> Self {
        Self { name, kind: Kind::OneOf(choices), option: None, optional: true }
    }

    /// As the server wants it. Keeps what it points to in `held`.
    fn raw(
        &self,
        chosen: bool,
        held: &mut Vec<Vec<raw::RedisModuleCommandArg>>,
    ) -> raw::RedisModuleCommandArg {
        let optional = if self.optional && !chosen { raw::REDISMODULE_CMD_ARG_OPTIONAL } else { 0 };
        let mut subargs = ptr::null_mut();
        if let Kind::OneOf(choices) = self.kind {
            let mut choices = raw_list(choices, true, held);
            subargs = choices.as_mut_ptr();
            held.push(choices);
        }
        raw::RedisModuleCommandArg {
            name: self.name.as_ptr(),
            type_: match self.kind {
                Kind::Key => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_KEY,
                Kind::Text => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_STRING,
                Kind::Number => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_INTEGER,
                Kind::CommandSource => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_PURE_TOKEN,
                Kind::OneOf(_) => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_ONEOF,
            },
            key_spec_index: if matches!(self.kind, Kind::Key) { 0 } else { -1 },
            token: self.option.map_or(ptr::null(), CStr::as_ptr),
            summary: ptr::null(),
            since: ptr::null(),
            flags: c_int::try_from(optional).unwrap_or_default(),
            deprecated_since: ptr::null(),
            subargs,
            display_text: ptr::null(),
        }
    }
}

/// A list as the server wants it, with the empty one at its end.
fn raw_list(
    arguments: &[Argument],
    chosen: bool,
    held: &mut Vec<Vec<raw::RedisModuleCommandArg>>,
) -> Vec<raw::RedisModuleCommandArg> {
    let mut list: Vec<_> = arguments.iter().map(|argument| argument.raw(chosen, held)).collect();
    // SAFETY: this C struct is valid when zeroed: null pointers and zero numbers.
    list.push(unsafe { mem::zeroed() });
    list
}

/// How a command uses its key.
#[derive(Clone, Copy, Debug)]
pub enum KeyUse {
    /// Reads it.
    Read,
    /// Tells what is in it, and may make, change or delete it.
    Write,
    /// The same, and tells nothing of it.
    WriteUnseen,
}

impl KeyUse {
    const fn flags(self) -> u32 {
        match self {
            Self::Read => raw::REDISMODULE_CMD_KEY_RO | raw::REDISMODULE_CMD_KEY_ACCESS,
            Self::Write => {
                raw::REDISMODULE_CMD_KEY_RW
                    | raw::REDISMODULE_CMD_KEY_ACCESS
                    | raw::REDISMODULE_CMD_KEY_UPDATE
            }
            Self::WriteUnseen => raw::REDISMODULE_CMD_KEY_RW | raw::REDISMODULE_CMD_KEY_UPDATE,
        }
    }
}

/// Adds [`OWN_CATEGORY`] where the server can: Redis from 7.4 on, and Valkey. Elsewhere the module goes without.
pub fn add_category(context: Context) -> bool {
    // SAFETY: reads a function pointer that the server set when the module was loaded.
    let Some(add) = (unsafe { raw::RedisModule_AddACLCategory }) else { return false };
    let Ok(name) = CString::new(OWN_CATEGORY) else { return false };
    // SAFETY: the context is that of the module's load; the name is copied.
    let added = unsafe { add(context.as_ptr(), name.as_ptr()) } == raw::REDISMODULE_OK as c_int;
    if !added {
        log(Level::Warning, "there is an ACL category @lock already: the module goes without");
    }
    added
}

/// Registers a command. False when the server refuses it.
pub fn register<C: Command>(context: Context, own_category: bool) -> bool {
    let key = c_int::from(C::KEY.is_some());
    let (context, name) = (context.as_ptr(), C::NAME.as_ptr());
    // SAFETY: the context is that of the module's load; all texts are constant and end in NUL.
    let created = unsafe {
        api!(RedisModule_CreateCommand(context, name, Some(dispatch::<C>), C::FLAGS.as_ptr(), key, key, key))
    };
    if created != raw::REDISMODULE_OK as c_int {
        log(Level::Warning, &format!("there is a command {} already", C::NAME.to_string_lossy()));
        return false;
    }
    // SAFETY: the command has just been made under this name.
    let command = unsafe { api!(RedisModule_GetCommand(context, name)) };
    !command.is_null() && describe::<C>(command) && categorise::<C>(command, own_category)
}

fn describe<C: Command>(command: *mut raw::RedisModuleCommand) -> bool {
    let version = raw::RedisModuleCommandInfoVersion {
        version: 1,
        sizeof_historyentry: size_of::<raw::RedisModuleCommandHistoryEntry>(),
        sizeof_keyspec: size_of::<raw::RedisModuleCommandKeySpec>(),
        sizeof_arg: size_of::<raw::RedisModuleCommandArg>(),
    };
    // SAFETY: these C structs are valid when zeroed: null pointers, zero numbers, "unknown" and "omitted" kinds.
    let mut specs: [raw::RedisModuleCommandKeySpec; 2] = unsafe { mem::zeroed() };
    if let (Some(key), [first, _end]) = (C::KEY, &mut specs) {
        first.flags = key.flags().into();
        first.begin_search_type = raw::RedisModuleKeySpecBeginSearchType_REDISMODULE_KSPEC_BS_INDEX;
        first.bs.index.pos = 1;
        first.find_keys_type = raw::RedisModuleKeySpecFindKeysType_REDISMODULE_KSPEC_FK_RANGE;
        first.fk.range.lastkey = 0;
        first.fk.range.keystep = 1;
        first.fk.range.limit = 0;
    }
    let mut held = Vec::new();
    let mut arguments = raw_list(C::ARGUMENTS, false, &mut held);
    let info = raw::RedisModuleCommandInfo {
        version: &raw const version,
        summary: C::SUMMARY.as_ptr(),
        complexity: C::COMPLEXITY.as_ptr(),
        since: c"0.1.0".as_ptr(),
        history: ptr::null_mut(),
        tips: if C::TIPS.is_empty() { ptr::null() } else { C::TIPS.as_ptr() },
        arity: C::ARITY,
        key_specs: if C::KEY.is_some() { specs.as_mut_ptr() } else { ptr::null_mut() },
        args: if C::ARGUMENTS.is_empty() { ptr::null_mut() } else { arguments.as_mut_ptr() },
    };
    // SAFETY: the command exists; everything `info` points to lives through the call, which copies it.
    let status = unsafe { api!(RedisModule_SetCommandInfo(command, &raw const info)) };
    status == raw::REDISMODULE_OK as c_int
}

fn categorise<C: Command>(command: *mut raw::RedisModuleCommand, own_category: bool) -> bool {
    // SAFETY: reads a function pointer that the server set when the module was loaded.
    let Some(categorise) = (unsafe { raw::RedisModule_SetCommandACLCategories }) else {
        return true; // Redis before 7.2
    };
    let known = |name: &&&str| own_category || **name != OWN_CATEGORY;
    let names: Vec<&str> = C::CATEGORIES.iter().filter(known).copied().collect();
    let Ok(names) = CString::new(names.join(" ")) else { return false };
    // SAFETY: the command exists; the text is read within the call.
    let status = unsafe { categorise(command, names.as_ptr()) };
    status == raw::REDISMODULE_OK as c_int
}

unsafe extern "C" fn dispatch<C: Command>(
    context: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> c_int {
    // SAFETY: the server's context of this very call.
    let context = unsafe { Context::of_command(context) };
    let done = catch_panic(Callback::Command, Err(Error::Internal), || {
        let count = usize::try_from(argc).unwrap_or_default();
        // SAFETY: the server gives `argc` strings, valid until this call returns.
        let arguments = unsafe { slice::from_raw_parts(argv, count) };
        C::run(context, Arguments::new(context.db(), arguments))
    });
    if let Err(error) = done {
        error.reply(context);
    }
    raw::REDISMODULE_OK as c_int
}
