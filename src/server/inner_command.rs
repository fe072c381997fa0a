//! A command that a client gives as arguments of another command.

use super::call_reply::CallReply;
use super::command::KeyUse;
use super::context::Context;
use super::key_name::string_bytes;
use super::known_commands::{LONGEST_NAME, known_command, known_command_or_sub};
use super::shared::on_main_thread;
use super::strings::{ArgumentString, ArgumentStrings};
use redis_module::raw;
use std::ffi::{CStr, c_int, c_void};
use std::{ptr, slice};

/// Why the module refuses an inner command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InnerRefused {
    /// The command belongs to this module.
    OwnCommand,
    /// No command has this name.
    NoSuchCommand,
    /// The command is WAIT or WAITAOF, which wait for the writes of the client that calls them. The server runs an
    /// inner command with a temporary client, which has made no writes.
    WaitsForReplicas,
    /// The command belongs to another module and may block its client.
    Blocks,
    /// The server has returned no reply.
    NoReply,
}

/// The inner command of the running command.
pub struct InnerCommand<'a> {
    name: &'a CStr,
    /// The command's name and arguments.
    strings: &'a [ArgumentString<'a>],
}

impl<'a> InnerCommand<'a> {
    /// The command that begins with the next argument; `None` if no argument follows.
    pub fn parse(rest: ArgumentStrings<'a>) -> Result<Option<Self>, InnerRefused> {
        let strings = rest.as_slice();
        let Some(name) = strings.first() else { return Ok(None) };
        // SAFETY: the strings are valid for 'a.
        let name = unsafe { command_name(name.as_ptr()) }.ok_or(InnerRefused::NoSuchCommand)?;
        if is_own(name.to_bytes()) {
            return Err(InnerRefused::OwnCommand);
        }
        // Valkey aborts when a module calls WAIT or WAITAOF in a script.
        if [&b"wait"[..], b"waitaof"].iter().any(|other| name.to_bytes().eq_ignore_ascii_case(other)) {
            return Err(InnerRefused::WaitsForReplicas);
        }
        Ok(Some(Self { name, strings }))
    }

    /// Runs the inner command with the client's rights, and sends the reply. The server makes the same checks as for
    /// commands of scripts: the client's rights, the role, the memory limit, replicas and the disk. A command that
    /// would block does not block here, but replies at once.
    pub fn run(&self, context: Context) -> Result<(), InnerRefused> {
        let reply = self.call(context)?;
        if let Some(text) = reply.error().and_then(|error| error.strip_prefix(OLD_ACL_ERROR)) {
            context.reply_error(&self.no_permission(text));
        } else {
            context.reply_with(&reply);
        }
        Ok(())
    }

    /// In a transaction or a script the server itself lets no command block. Elsewhere, the server aborts when another
    /// module's command blocks during this call. So elsewhere, this function refuses a command of another module that
    /// has the flag `blocking`. A command without the flag may still block. If `rename-command` has removed COMMAND,
    /// the module does not know the flags, so any command may block. If the server can return a promise (Redis from 7.2
    /// on, and Valkey), the module calls such a command in the mode that allows a promise as its reply.
    fn call(&self, context: Context) -> Result<CallReply, InnerRefused> {
        let known = known_command(self.name);
        let cannot_block = known.as_ref().is_some_and(|command| !command.of_module)
            || context.flags().in_transaction_or_script();
        let (as_client, as_server) = match known {
            _ if cannot_block => (c"0!CESMv", c"0!ESMv"),
            Some(command) if command.says_it_blocks => return Err(InnerRefused::Blocks),
            Some(_) | None if CallReply::may_be_promise() => (c"0!CESMKv", c"0!ESMKv"),
            Some(_) | None => (c"0!CESMv", c"0!ESMv"),
        };
        let mut reply = self.call_as(context, as_client)?;
        // The server returns this error if a module has called LOCK.GUARD, because a module has no user. So the command
        // runs again with the rights of the server.
        if reply.error().is_some_and(|error| error.starts_with(b"ERR cannot run as user")) {
            reply = self.call_as(context, as_server)?;
        }
        Ok(reply)
    }

    fn call_as(&self, context: Context, mode: &CStr) -> Result<CallReply, InnerRefused> {
        let arguments = self.strings.get(1..).unwrap_or_default();
        // SAFETY: the arguments match the mode: an array of the server's strings with its length. `CallReply`
        // owns the reply, and frees it.
        let reply = unsafe {
            CallReply::new(api!(RedisModule_Call(
                context.as_ptr(),
                self.name.as_ptr(),
                mode.as_ptr(),
                arguments.as_ptr().cast::<*mut raw::RedisModuleString>(),
                arguments.len(),
            )))
        };
        let reply = reply.ok_or(InnerRefused::NoReply)?;
        // The command waits, and the server cannot prevent the wait. The module drops the promise, so nobody gets the
        // reply.
        if reply.is_promise() {
            Err(InnerRefused::Blocks)
        } else if reply.is_empty() {
            Err(InnerRefused::NoReply)
        } else {
            Ok(reply)
        }
    }

    /// The error text that a client gets if it sends the command itself. Redis 7.0 gives modules a different
    /// text.
    fn no_permission(&self, text: &[u8]) -> String {
        let what = if text.ends_with(b"subcommand.") {
            let name = self.name.to_bytes().to_ascii_lowercase();
            return format!(
                "NOPERM this user has no permissions to run the '{}' command",
                name.escape_ascii()
            );
        } else if text.starts_with(b"can't publish") {
            "channels"
        } else {
            "keys"
        };
        format!("NOPERM this user has no permissions to access one of the {what} used as arguments")
    }
}

/// The beginning of the error of Redis 7.0 when the user may not run a command that a module calls.
const OLD_ACL_ERROR: &[u8] = b"ERR acl verification failed, ";

/// The name of a command; `None` if no command can have this name.
///
/// # Safety
/// `string` is valid and unchanged for `'a`.
unsafe fn command_name<'a>(string: *const raw::RedisModuleString) -> Option<&'a CStr> {
    // SAFETY: the caller promises a valid string. The server stores a NUL after the bytes of each string, so that
    // modules can use the string as a C string.
    let with_nul = unsafe {
        let name = string_bytes(string);
        if name.len() > LONGEST_NAME {
            return None;
        }
        slice::from_raw_parts(name.as_ptr(), name.len().saturating_add(1))
    };
    CStr::from_bytes_with_nul(with_nul).ok()
}

fn is_own(name: &[u8]) -> bool {
    name.get(..5).is_some_and(|start| start.eq_ignore_ascii_case(b"lock."))
}

/// The position of the inner command among the words of its command.
const INNER_COMMAND: usize = 3;

/// Reports to the server the keys of a command that has an inner command: the first argument, and the keys of the inner
/// command. Returns false if the server does not ask for keys but runs the command.
///
/// From Redis 8.4 on, the server asks on its I/O threads, without its lock. On these threads the module must not call a
/// command to learn the flags of the keys, so most flags are unknown. When the inner command runs, the server checks
/// the client's rights by the correct flags.
///
/// # Safety
/// The server has passed the context and the strings to the running callback.
pub unsafe fn report_keys(context: *mut raw::RedisModuleCtx, argv: &[*mut raw::RedisModuleString]) -> bool {
    // SAFETY: the caller promises a valid context and valid strings. These functions need no client.
    unsafe {
        if api!(RedisModule_IsKeysPositionRequest(context)) == 0 {
            return false;
        }
        let report = |position: usize, flags: c_int| {
            let position = c_int::try_from(position).unwrap_or_default();
            api!(RedisModule_KeyAtPosWithFlags(context, position, flags));
        };
        if argv.len() > 1 {
            report(1, c_int::try_from(KeyUse::Read.flags()).unwrap_or_default());
        }
        let inner = argv.get(INNER_COMMAND..).unwrap_or_default();
        // The module does not report the keys of an inner command that it refuses to run: a command of this module, or
        // a name that no command can have.
        if inner.first().and_then(|name| command_name(*name)).is_none_or(|name| is_own(name.to_bytes())) {
            return true;
        }
        let keys = if on_main_thread() { known_keys(context, inner) } else { keys_by_server(context, inner) };
        keys.into_iter().for_each(|(position, flags)| report(position.saturating_add(INNER_COMMAND), flags));
        true
    }
}

/// The positions and flags of the keys of a command.
///
/// # Safety
/// The conditions of [`report_keys`] hold, and the thread holds the server's lock.
unsafe fn known_keys(
    context: *mut raw::RedisModuleCtx,
    argv: &[*mut raw::RedisModuleString],
) -> Vec<(usize, c_int)> {
    // SAFETY: the caller promises valid strings.
    let words: Vec<&[u8]> = argv.iter().map(|word| unsafe { string_bytes(*word) }).collect();
    // SAFETY: the caller promises a valid context and valid strings.
    let by_server = || unsafe { keys_by_server(context, argv) };
    // If `rename-command` has removed COMMAND, the module knows no command, but the server still knows most keys. If
    // the number of arguments is wrong, the server returns no keys.
    let Some(command) = known_command_or_sub(&words).filter(|command| command.takes(words.len())) else {
        return by_server();
    };
    if let Some(keys) = command.keys(&words) {
        return keys;
    }
    // The server names no flags if it has not used the command's key specifications.
    let flags = |(position, flags)| (position, if flags == 0 { command.flags_at(position) } else { flags });
    by_server().into_iter().map(flags).collect()
}

/// The positions of the keys of a command, as the server finds them, and the flags of each key (0 if the
/// server names none). The server does not need its lock for this call.
///
/// # Safety
/// The conditions of [`report_keys`] hold.
unsafe fn keys_by_server(
    context: *mut raw::RedisModuleCtx,
    argv: &[*mut raw::RedisModuleString],
) -> Vec<(usize, c_int)> {
    let (mut count, mut flags) = (0, ptr::null_mut());
    // SAFETY: each list is null or has `count` entries. The server has allocated both lists, and each is
    // freed once.
    unsafe {
        let positions = api!(RedisModule_GetCommandKeysWithFlags(
            context,
            argv.as_ptr().cast_mut(),
            c_int::try_from(argv.len()).unwrap_or_default(),
            &raw mut count,
            &raw mut flags,
        ));
        let count = usize::try_from(count).unwrap_or_default();
        let mut keys = Vec::new();
        if !positions.is_null() && !flags.is_null() {
            let position = |key| usize::try_from(*positions.add(key)).unwrap_or_default();
            keys.extend((0..count).map(|key| (position(key), *flags.add(key))));
        }
        for list in [positions, flags] {
            if !list.is_null() {
                api!(RedisModule_Free(list.cast::<c_void>()));
            }
        }
        keys
    }
}
