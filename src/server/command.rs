//! Commands as the server registers them: name, flags, key, arguments and documentation.

use super::context::Context;
use super::log::warn;
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

/// Carries changes of a lock to replicas and the AOF.
pub const APPLY: &CStr = c"LOCK._APPLY";

/// Asks the server whether it accepts a write.
pub const GATE: &CStr = c"lock._gate";

/// The ACL category of the commands for clients.
pub const OWN_CATEGORY: &str = "lock";

/// One argument of a command, as it is documented.
#[derive(Clone, Copy, Debug)]
pub struct Argument {
    name: &'static CStr,
    kind: raw::RedisModuleCommandArgType,
    option: Option<&'static CStr>,
    flags: u32,
    parts: &'static [Argument],
}

impl Argument {
    /// The key, which is the first argument.
    pub const KEY: Self =
        Self { kind: raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_KEY, ..Self::text(c"key") };

    /// A string that must be given.
    pub const fn text(name: &'static CStr) -> Self {
        let kind = raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_STRING;
        Self { name, kind, option: None, flags: 0, parts: &[] }
    }

    /// A number that must be given.
    pub const fn required_number(name: &'static CStr) -> Self {
        Self { kind: raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_INTEGER, ..Self::text(name) }
    }

    /// Any number of strings, or none.
    pub const fn more(name: &'static CStr) -> Self {
        let flags = raw::REDISMODULE_CMD_ARG_OPTIONAL | raw::REDISMODULE_CMD_ARG_MULTIPLE;
        Self { flags, ..Self::text(name) }
    }

    /// An option with a number as its value.
    pub const fn number(name: &'static CStr, option: &'static CStr) -> Self {
        let flags = raw::REDISMODULE_CMD_ARG_OPTIONAL;
        Self { option: Some(option), flags, ..Self::required_number(name) }
    }

    /// An option without a value.
    pub const fn flag(name: &'static CStr, option: &'static CStr) -> Self {
        let kind = raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_PURE_TOKEN;
        Self { kind, ..Self::number(name, option) }
    }

    /// One of several options.
    pub const fn one_of(name: &'static CStr, parts: &'static [Self]) -> Self {
        let kind = raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_ONEOF;
        Self { kind, flags: raw::REDISMODULE_CMD_ARG_OPTIONAL, parts, ..Self::text(name) }
    }

    /// An option, and the arguments that may follow it.
    pub const fn together(name: &'static CStr, parts: &'static [Self]) -> Self {
        let kind = raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_BLOCK;
        Self { kind, ..Self::one_of(name, parts) }
    }
}

/// A list of arguments as structs of the module API, with an empty argument at its end. The first `chosen` arguments
/// are not marked as optional, because the argument that contains them is already optional. `held` owns the lists to
/// which the result points.
fn raw_list(
    arguments: &[Argument],
    chosen: usize,
    held: &mut Vec<Vec<raw::RedisModuleCommandArg>>,
) -> Vec<raw::RedisModuleCommandArg> {
    // SAFETY: this C struct is valid when all its pointers are null and its numbers are zero.
    let end: raw::RedisModuleCommandArg = unsafe { mem::zeroed() };
    let mut list = Vec::new();
    for (at, argument) in arguments.iter().enumerate() {
        let is_key = argument.kind == raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_KEY;
        let is_choice = argument.kind == raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_ONEOF;
        let mut parts = raw_list(argument.parts, if is_choice { argument.parts.len() } else { 1 }, held);
        list.push(raw::RedisModuleCommandArg {
            name: argument.name.as_ptr(),
            type_: argument.kind,
            key_spec_index: if is_key { 0 } else { -1 },
            token: argument.option.map_or(ptr::null(), CStr::as_ptr),
            flags: if at < chosen { 0 } else { c_int::try_from(argument.flags).unwrap_or_default() },
            subargs: if argument.parts.is_empty() { ptr::null_mut() } else { parts.as_mut_ptr() },
            ..end
        });
        held.push(parts);
    }
    list.push(end);
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
        warn("the ACL category @lock exists already, so the module does not add it");
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
        warn(&format!("the command {} exists already", info.name.to_string_lossy()));
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
        if matches!(key, KeyUse::ReadBeforeCommand) {
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
