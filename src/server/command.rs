//! Commands as the server registers them: name, flags, key, arguments and documentation.

use super::context::Context;
use super::log::{Level, log};
use redis_module::raw;
use std::ffi::{CStr, CString, c_int};
use std::{mem, ptr};

/// A command as it is described to the server.
pub struct CommandInfo {
    /// The name, in lower case.
    pub name: &'static CStr,
    /// The flags, as `RM_CreateCommand` names them.
    pub flags: &'static CStr,
    /// The number of words of a call, including the name. A negative number -n means n words or more.
    pub arity: c_int,
    /// How the command uses its key, which is its first argument; `None` for a command without a key.
    pub key: Option<KeyUse>,
    /// The arguments, as COMMAND DOCS and the hints of redis-cli show them.
    pub arguments: &'static [Argument],
    /// The ACL categories, on servers that let a module name them. [`OWN_CATEGORY`] is left out if the server
    /// could not add it.
    pub categories: &'static [&'static str],
    /// The tips for clients and proxies, as COMMAND INFO names them, separated by spaces.
    pub tips: &'static CStr,
    /// What the command does, in one sentence.
    pub summary: &'static CStr,
    pub complexity: &'static CStr,
}

/// The ACL category of the commands for clients.
pub const OWN_CATEGORY: &str = "lock";

/// One argument of a command, as it is documented.
#[derive(Clone, Copy, Debug)]
pub struct Argument {
    name: &'static CStr,
    kind: Kind,
    option: Option<&'static CStr>,
    optional: bool,
    multiple: bool,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Key,
    Text,
    Number,
    Flag,
    OneOf(&'static [Argument]),
    Together(&'static [Argument]),
}

impl Argument {
    /// The key, which is the first argument.
    pub const KEY: Self =
        Self { name: c"key", kind: Kind::Key, option: None, optional: false, multiple: false };

    /// A string that must be given.
    pub const fn text(name: &'static CStr) -> Self {
        Self { name, kind: Kind::Text, option: None, optional: false, multiple: false }
    }

    /// A number that must be given.
    pub const fn required_number(name: &'static CStr) -> Self {
        Self { kind: Kind::Number, ..Self::text(name) }
    }

    /// Any number of strings, or none.
    pub const fn more(name: &'static CStr) -> Self {
        Self { optional: true, multiple: true, ..Self::text(name) }
    }

    /// An option with a number as its value.
    pub const fn number(name: &'static CStr, option: &'static CStr) -> Self {
        Self { name, kind: Kind::Number, option: Some(option), optional: true, multiple: false }
    }

    /// An option without a value.
    pub const fn flag(name: &'static CStr, option: &'static CStr) -> Self {
        Self { name, kind: Kind::Flag, option: Some(option), optional: true, multiple: false }
    }

    /// One of several options.
    pub const fn one_of(name: &'static CStr, choices: &'static [Self]) -> Self {
        Self { name, kind: Kind::OneOf(choices), option: None, optional: true, multiple: false }
    }

    /// An option, and the arguments that may follow it.
    pub const fn together(name: &'static CStr, arguments: &'static [Self]) -> Self {
        Self { name, kind: Kind::Together(arguments), option: None, optional: true, multiple: false }
    }

    /// The argument as a struct of the module API. `held` owns the memory that the result points to.
    fn raw(
        &self,
        chosen: bool,
        held: &mut Vec<Vec<raw::RedisModuleCommandArg>>,
    ) -> raw::RedisModuleCommandArg {
        let optional = if self.optional && !chosen { raw::REDISMODULE_CMD_ARG_OPTIONAL } else { 0 };
        let multiple = if self.multiple { raw::REDISMODULE_CMD_ARG_MULTIPLE } else { 0 };
        let mut subargs = ptr::null_mut();
        let parts = match self.kind {
            Kind::OneOf(choices) => Some(raw_list(choices, choices.len(), held)),
            Kind::Together(arguments) => Some(raw_list(arguments, 1, held)),
            Kind::Key | Kind::Text | Kind::Number | Kind::Flag => None,
        };
        if let Some(mut parts) = parts {
            subargs = parts.as_mut_ptr();
            held.push(parts);
        }
        raw::RedisModuleCommandArg {
            name: self.name.as_ptr(),
            type_: match self.kind {
                Kind::Key => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_KEY,
                Kind::Text => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_STRING,
                Kind::Number => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_INTEGER,
                Kind::Flag => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_PURE_TOKEN,
                Kind::OneOf(_) => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_ONEOF,
                Kind::Together(_) => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_BLOCK,
            },
            key_spec_index: if matches!(self.kind, Kind::Key) { 0 } else { -1 },
            token: self.option.map_or(ptr::null(), CStr::as_ptr),
            summary: ptr::null(),
            since: ptr::null(),
            flags: c_int::try_from(optional | multiple).unwrap_or_default(),
            deprecated_since: ptr::null(),
            subargs,
            display_text: ptr::null(),
        }
    }
}

/// A list of arguments as structs of the module API, with an empty argument at its end. The first `chosen` arguments
/// are not marked as optional, because the argument that contains them is already optional.
fn raw_list(
    arguments: &[Argument],
    chosen: usize,
    held: &mut Vec<Vec<raw::RedisModuleCommandArg>>,
) -> Vec<raw::RedisModuleCommandArg> {
    let raw = |(at, argument): (usize, &Argument)| argument.raw(at < chosen, held);
    let mut list: Vec<_> = arguments.iter().enumerate().map(raw).collect();
    // SAFETY: this C struct is valid when all its pointers are null and its numbers are zero.
    list.push(unsafe { mem::zeroed() });
    list
}

/// How a command uses its key.
#[derive(Clone, Copy, Debug)]
pub enum KeyUse {
    /// Reads the key.
    Read,
    /// Replies with the contents of the key, and may create, change or delete the key.
    Write,
    /// May create, change or delete the key, and replies with none of its contents.
    WriteUnseen,
    /// Reads the key. An inner command begins at the third argument, and may have more keys.
    ReadBeforeCommand,
}

impl KeyUse {
    /// The flags of the server for the key.
    pub(super) const fn flags(self) -> u32 {
        match self {
            Self::Read | Self::ReadBeforeCommand => {
                raw::REDISMODULE_CMD_KEY_RO | raw::REDISMODULE_CMD_KEY_ACCESS
            }
            Self::Write => {
                raw::REDISMODULE_CMD_KEY_RW
                    | raw::REDISMODULE_CMD_KEY_ACCESS
                    | raw::REDISMODULE_CMD_KEY_UPDATE
            }
            Self::WriteUnseen => raw::REDISMODULE_CMD_KEY_RW | raw::REDISMODULE_CMD_KEY_UPDATE,
        }
    }

    /// The position of the inner command, for a command with an inner command.
    pub const fn inner_command(self) -> Option<usize> {
        match self {
            Self::ReadBeforeCommand => Some(3),
            Self::Read | Self::Write | Self::WriteUnseen => None,
        }
    }
}

/// Adds [`OWN_CATEGORY`] where the server can: Redis from 7.4 on, and Valkey. On other servers a module cannot add a
/// category.
pub fn add_category(context: Context) -> bool {
    // SAFETY: the server set this function pointer when the module was loaded.
    let Some(add) = (unsafe { raw::RedisModule_AddACLCategory }) else { return false };
    let Ok(name) = CString::new(OWN_CATEGORY) else { return false };
    // SAFETY: the context is valid while the server loads the module, and the server copies the name.
    let added = unsafe { add(context.as_ptr(), name.as_ptr()) } == raw::REDISMODULE_OK as c_int;
    if !added {
        log(Level::Warning, "the ACL category @lock exists already, so the module does not add it");
    }
    added
}

/// Registers a command whose calls go to `entry_point`. Returns false if the server refuses the command.
pub fn register_command(
    context: Context,
    info: &CommandInfo,
    own_category: bool,
    entry_point: raw::RedisModuleCmdFunc,
) -> bool {
    let key = c_int::from(info.key.is_some());
    let (context, name) = (context.as_ptr(), info.name.as_ptr());
    // SAFETY: the context is valid while the server loads the module. All texts are constant and end in NUL.
    let created = unsafe {
        api!(RedisModule_CreateCommand(context, name, entry_point, info.flags.as_ptr(), key, key, key))
    };
    if created != raw::REDISMODULE_OK as c_int {
        log(Level::Warning, &format!("the command {} exists already", info.name.to_string_lossy()));
        return false;
    }
    // SAFETY: the command was created above under this name.
    let command = unsafe { api!(RedisModule_GetCommand(context, name)) };
    !command.is_null() && describe(command, info) && categorise(command, info, own_category)
}

fn describe(command: *mut raw::RedisModuleCommand, info: &CommandInfo) -> bool {
    let version = raw::RedisModuleCommandInfoVersion {
        version: 1,
        sizeof_historyentry: size_of::<raw::RedisModuleCommandHistoryEntry>(),
        sizeof_keyspec: size_of::<raw::RedisModuleCommandKeySpec>(),
        sizeof_arg: size_of::<raw::RedisModuleCommandArg>(),
    };
    // SAFETY: zero is a valid value for every field of these C structs. For a kind, zero means "unknown" or
    // "omitted".
    let mut specs: [raw::RedisModuleCommandKeySpec; 3] = unsafe { mem::zeroed() };
    if let (Some(key), [first, inner, _end]) = (info.key, &mut specs) {
        first.flags = key.flags().into();
        first.begin_search_type = raw::RedisModuleKeySpecBeginSearchType_REDISMODULE_KSPEC_BS_INDEX;
        first.bs.index.pos = 1;
        first.find_keys_type = raw::RedisModuleKeySpecFindKeysType_REDISMODULE_KSPEC_FK_RANGE;
        first.fk.range.lastkey = 0;
        first.fk.range.keystep = 1;
        first.fk.range.limit = 0;
        if key.inner_command().is_some() {
            // The server asks the module for the positions and the true flags of the keys of the inner command.
            let any_use = KeyUse::Write.flags() | raw::REDISMODULE_CMD_KEY_INCOMPLETE;
            inner.flags = any_use.into();
            inner.begin_search_type = raw::RedisModuleKeySpecBeginSearchType_REDISMODULE_KSPEC_BS_UNKNOWN;
            inner.find_keys_type = raw::RedisModuleKeySpecFindKeysType_REDISMODULE_KSPEC_FK_UNKNOWN;
        }
    }
    let mut held = Vec::new();
    let mut arguments = raw_list(info.arguments, 0, &mut held);
    let described = raw::RedisModuleCommandInfo {
        version: &raw const version,
        summary: info.summary.as_ptr(),
        complexity: info.complexity.as_ptr(),
        since: c"0.1.0".as_ptr(),
        history: ptr::null_mut(),
        tips: if info.tips.is_empty() { ptr::null() } else { info.tips.as_ptr() },
        arity: info.arity,
        key_specs: if info.key.is_some() { specs.as_mut_ptr() } else { ptr::null_mut() },
        args: if info.arguments.is_empty() { ptr::null_mut() } else { arguments.as_mut_ptr() },
    };
    // SAFETY: the command exists. All data behind `described` lives through the call, and the server copies
    // the data.
    let status = unsafe { api!(RedisModule_SetCommandInfo(command, &raw const described)) };
    status == raw::REDISMODULE_OK as c_int
}

fn categorise(command: *mut raw::RedisModuleCommand, info: &CommandInfo, own_category: bool) -> bool {
    // SAFETY: the server set this function pointer when the module was loaded.
    let Some(categorise) = (unsafe { raw::RedisModule_SetCommandACLCategories }) else {
        return true; // Redis before 7.2 lacks this function
    };
    let known = |name: &&&str| own_category || **name != OWN_CATEGORY;
    let names: Vec<&str> = info.categories.iter().filter(known).copied().collect();
    let Ok(names) = CString::new(names.join(" ")) else { return false };
    // SAFETY: the command exists, and the server reads the text only during the call.
    let status = unsafe { categorise(command, names.as_ptr()) };
    status == raw::REDISMODULE_OK as c_int
}
