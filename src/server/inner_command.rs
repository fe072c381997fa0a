//! A command that a client gives as arguments of another command.

use super::call_reply::CallReply;
use super::command::KeyUse;
use super::context::Context;
use super::shared::Shared;
use super::strings::{ArgumentStrings, string_bytes};
use lazy_static::lazy_static;
use redis_module::raw;
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_int, c_void};
use std::ptr;

/// Why an inner command is refused before the server sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InnerRefused {
    /// It is one of this module's commands.
    OwnCommand,
    /// No command has such a name.
    NoSuchCommand,
    /// It is another module's command, and it may block its client.
    Blocks,
    /// The server did not run it.
    Failed,
}

/// The inner command of the running command.
pub struct InnerCommand<'a> {
    name: CString,
    /// The command's name and arguments.
    strings: &'a [*mut raw::RedisModuleString],
}

/// Who has made a command.
#[derive(Clone, Copy)]
enum Maker {
    Server,
    Module { says_it_blocks: bool },
}

lazy_static! {
    /// The makers of commands that were run. A name never passes from the server to a module or back.
    static ref MAKERS: Shared<HashMap<Box<[u8]>, Maker>> = Shared::new(HashMap::new());
}

impl<'a> InnerCommand<'a> {
    /// The command that begins with the next argument; `None` when there is none.
    pub fn parse(rest: ArgumentStrings<'a>) -> Result<Option<Self>, InnerRefused> {
        let strings = rest.as_slice();
        let Some(name) = strings.first() else { return Ok(None) };
        // SAFETY: the strings are valid for 'a.
        let name = unsafe { string_bytes(*name) };
        if is_own(name) {
            return Err(InnerRefused::OwnCommand);
        }
        let name = CString::new(name).map_err(|_| InnerRefused::NoSuchCommand)?;
        Ok(Some(Self { name, strings }))
    }

    /// Runs the command as the client of the running command, and sends its reply. The server checks what it checks for commands of
    /// scripts: the client's rights, the role, the memory limit, replicas and the disk. A command that would block does not.
    pub fn run(&self, context: Context) -> Result<(), InnerRefused> {
        let reply = self.call(context)?;
        if let Some(text) = reply.text().strip_prefix(OLD_ACL_ERROR) {
            context.reply_error(&self.no_permission(text));
        } else {
            context.reply_with(&reply);
        }
        Ok(())
    }

    /// In a transaction or script the server lets no command block. Elsewhere it ends itself when a module's command blocks a client
    /// that must not, so such a command may block there, and is stopped. Redis 7.0 knows no such way.
    fn call(&self, context: Context) -> Result<CallReply, InnerRefused> {
        let (as_client, as_server) = match self.maker(context) {
            Maker::Module { says_it_blocks } if !context.flags().in_transaction_or_script() => match can_stop() {
                true => (c"0!CESMKv", c"0!ESMKv"),
                false if says_it_blocks => return Err(InnerRefused::Blocks),
                false => (c"0!CESMv", c"0!ESMv"),
            },
            Maker::Module { .. } | Maker::Server => (c"0!CESMv", c"0!ESMv"),
        };
        let mut reply = self.call_as(context, as_client)?;
        // A module has called us without a client's rights.
        if reply.text().starts_with(b"ERR cannot run as user") {
            reply = self.call_as(context, as_server)?;
        }
        if reply.stop_waiting() { Err(InnerRefused::Blocks) } else { Ok(reply) }
    }

    fn call_as(&self, context: Context, mode: &CStr) -> Result<CallReply, InnerRefused> {
        let arguments = self.strings.get(1..).unwrap_or_default();
        // SAFETY: the mode names an array of the server's strings with its length, and these follow; the reply is ours.
        let reply = unsafe {
            CallReply::new(api!(RedisModule_Call(
                context.as_ptr(),
                self.name.as_ptr(),
                mode.as_ptr(),
                arguments.as_ptr(),
                arguments.len(),
            )))
        };
        reply.ok_or(InnerRefused::Failed)
    }

    fn maker(&self, context: Context) -> Maker {
        /// How many are remembered.
        const MOST: usize = 1_024;
        let name = self.name.to_bytes();
        if let Some(known) = MAKERS.with(|makers| makers.get(name).copied()) {
            return known;
        }
        let Some(maker) = ask_maker(context, &self.name) else { return Maker::Server };
        MAKERS.with(|makers| {
            if makers.len() == MOST {
                makers.clear();
            }
            makers.insert(name.into(), maker);
        });
        maker
    }

    /// The error as a client gets it for a command of its own. Redis 7.0 has another text for modules.
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

/// How the error of Redis 7.0 begins when the user may not run a command that a module calls.
const OLD_ACL_ERROR: &[u8] = b"ERR acl verification failed, ";

fn is_own(name: &[u8]) -> bool {
    name.get(..5).is_some_and(|start| start.eq_ignore_ascii_case(b"lock."))
}

/// Whether the server can stop a command that it has let block: Redis from 7.2 on, and Valkey.
fn can_stop() -> bool {
    // SAFETY: reads a function pointer that the server set when the module was loaded.
    unsafe { { raw::RedisModule_CallReplyPromiseAbort }.is_some() }
}

/// Asks the server who has made a command; `None` when there is no such command.
fn ask_maker(context: Context, name: &CStr) -> Option<Maker> {
    // SAFETY: the mode names two texts that end in NUL, and these follow; the reply is ours.
    let reply = unsafe {
        CallReply::new(api!(RedisModule_Call(
            context.as_ptr(),
            c"COMMAND".as_ptr(),
            c"Ecc".as_ptr(),
            c"INFO".as_ptr(),
            name.as_ptr(),
        )))
    }?;
    let flags = reply.texts_at(&[0, 2])?;
    let has = |flag: &[u8]| flags.iter().any(|known| known == flag);
    let module = Maker::Module { says_it_blocks: has(b"blocking") };
    Some(if has(b"module") { module } else { Maker::Server })
}

/// Tells the server the keys of a command with an inner command at position `at`: its own first argument, and those of the inner
/// command. Returns false if the server does not ask for keys, but runs the command.
///
/// # Safety
/// The server's context and strings, of the running call.
pub unsafe fn report_keys(
    context: *mut raw::RedisModuleCtx,
    argv: &[*mut raw::RedisModuleString],
    at: usize,
) -> bool {
    // SAFETY:
    // - the context is valid, as the caller promises; without a client, it is good for these functions;
    // - both lists have `count` entries, or are null, and are the server's, freed once.
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
        let inner = argv.get(at..).unwrap_or_default();
        // An own command may have an inner command again, and so on.
        if inner.first().is_none_or(|name| is_own(string_bytes(*name))) {
            return true;
        }
        let (mut count, mut flags) = (0, ptr::null_mut());
        let positions = api!(RedisModule_GetCommandKeysWithFlags(
            context,
            inner.as_ptr().cast_mut(),
            c_int::try_from(inner.len()).unwrap_or_default(),
            &raw mut count,
            &raw mut flags,
        ));
        if !positions.is_null() && !flags.is_null() {
            for key in 0..usize::try_from(count).unwrap_or_default() {
                let position = usize::try_from(*positions.add(key)).unwrap_or_default();
                report(position.saturating_add(at), *flags.add(key));
            }
        }
        for list in [positions, flags] {
            if !list.is_null() {
                api!(RedisModule_Free(list.cast::<c_void>()));
            }
        }
        true
    }
}
