//! The context that the server hands to every callback: replies, replication, notification.

use super::call_reply::CallReply;
use super::entry_points::entry_points;
use super::info;
use super::key_name::{KeyName, string_bytes};
use lockward_core::{Db, Event};
use redis_module::raw;
use std::ffi::{CStr, CString, c_char, c_int, c_long, c_longlong};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The context of one callback. Must not be kept after the callback has returned.
#[derive(Clone, Copy)]
pub struct Context {
    raw: *mut raw::RedisModuleCtx,
    of_command: bool,
}

/// The flags of a context. Reading the flags is costly, because the server computes its memory use each time.
#[derive(Clone, Copy)]
pub struct Flags(u32);

impl Flags {
    const fn any(self, flags: u32) -> bool {
        self.0 & flags != 0
    }

    /// The client must not be blocked, because it is in MULTI, a script, a function or another module's call.
    pub const fn must_not_block(self) -> bool {
        self.any(
            raw::REDISMODULE_CTX_FLAGS_DENY_BLOCKING
                | raw::REDISMODULE_CTX_FLAGS_MULTI
                | raw::REDISMODULE_CTX_FLAGS_LUA,
        )
    }

    /// A transaction, a script or a function is running. This flag is among the global flags.
    pub const fn in_transaction_or_script(self) -> bool {
        self.any(raw::REDISMODULE_CTX_FLAGS_MULTI | raw::REDISMODULE_CTX_FLAGS_LUA)
    }

    /// The command comes from the primary of this replica, or from a node that moves a slot here.
    pub const fn sent_by_primary(self) -> bool {
        self.any(raw::REDISMODULE_CTX_FLAGS_REPLICATED)
    }

    /// The server is loading its data, and serves no client meanwhile. So a command that writes comes from the AOF.
    pub const fn loading(self) -> bool {
        self.any(raw::REDISMODULE_CTX_FLAGS_LOADING)
    }

    /// The server is loading data. With ASYNC_LOADING the server still serves the old data meanwhile.
    pub const fn loading_or_async_loading(self) -> bool {
        self.any(raw::REDISMODULE_CTX_FLAGS_LOADING | raw::REDISMODULE_CTX_FLAGS_ASYNC_LOADING)
    }

    /// The server has a memory limit, and evicts keys above it.
    pub const fn may_evict(self) -> bool {
        self.any(raw::REDISMODULE_CTX_FLAGS_EVICT)
    }

    /// The server is a node of a cluster.
    pub const fn cluster(self) -> bool {
        self.any(raw::REDISMODULE_CTX_FLAGS_CLUSTER)
    }

    /// The server is a replica.
    pub const fn replica(self) -> bool {
        self.any(raw::REDISMODULE_CTX_FLAGS_SLAVE)
    }
}

/// Valkey's `VALKEYMODULE_OPTIONS_HANDLE_ATOMIC_SLOT_MIGRATION`. Without this option, the server refuses CLUSTER
/// MIGRATESLOTS. Redis has not given this bit a meaning.
const VALKEY_HANDLE_ATOMIC_SLOT_MIGRATION: u32 = 1 << 5;

fn length(len: usize) -> c_long {
    c_long::try_from(len).unwrap_or(c_long::MAX)
}

impl Context {
    /// Wraps the context of a callback.
    ///
    /// # Safety
    /// `context` belongs to the running callback, and the wrapper is not used after this callback has
    /// returned.
    pub const unsafe fn new(context: *mut raw::RedisModuleCtx) -> Self {
        Self { raw: context, of_command: false }
    }

    /// Wraps the context of a command's callback.
    ///
    /// # Safety
    /// The conditions of [`Context::new`] hold.
    pub const unsafe fn of_command(context: *mut raw::RedisModuleCtx) -> Self {
        Self { raw: context, of_command: true }
    }

    /// Whether this is the context of a command. Only a command can be replicated verbatim.
    pub const fn is_of_command(self) -> bool {
        self.of_command
    }

    pub const fn as_ptr(self) -> *mut raw::RedisModuleCtx {
        self.raw
    }

    /// Declares what the module handles itself: read errors while data is loaded, the signals of changed keys, the load
    /// of a new data set beside the old data set and, on Valkey, the atomic migration of slots.
    pub fn set_options(self) {
        let mut options = raw::REDISMODULE_OPTIONS_HANDLE_IO_ERRORS
            | raw::REDISMODULE_OPTION_NO_IMPLICIT_SIGNAL_MODIFIED
            | raw::REDISMODULE_OPTIONS_HANDLE_REPL_ASYNC_LOAD;
        if info::text(c"server", c"valkey_version").is_some() {
            options |= VALKEY_HANDLE_ATOMIC_SLOT_MIGRATION;
        }
        // SAFETY: the context is valid while the server loads the module.
        unsafe { api!(RedisModule_SetModuleOptions(self.raw, options.cast_signed())) };
    }

    /// The flags of this callback.
    pub fn flags(self) -> Flags {
        // SAFETY: the context is valid.
        let flags = unsafe { api!(RedisModule_GetContextFlags(self.raw)) };
        Flags(flags.cast_unsigned())
    }

    /// The database that the client has selected.
    pub fn db(self) -> Db {
        // SAFETY: the context is valid.
        Db(unsafe { api!(RedisModule_GetSelectedDb(self.raw)) })
    }

    /// Selects a database, in a callback without a client.
    pub fn select(self, db: Db) {
        // SAFETY: the context is valid. The server refuses a database that does not exist.
        unsafe { api!(RedisModule_SelectDb(self.raw, db.0)) };
    }

    pub fn client_id(self) -> u64 {
        // SAFETY: the context is valid.
        unsafe { api!(RedisModule_GetClientId(self.raw)) }
    }

    /// Whether a client is the default user, as a client is that has not authenticated. Also true for the client of a
    /// module, which has no user.
    pub fn is_default_user(self, client: u64) -> bool {
        // SAFETY: the context is valid. The server returns a new string or null, and the string is freed once, after
        // its last use.
        unsafe {
            let user = api!(RedisModule_GetClientUserNameById(self.raw, client));
            if user.is_null() {
                return true;
            }
            let is_default = string_bytes(user) == b"default";
            api!(RedisModule_FreeString(self.raw, user));
            is_default
        }
    }

    pub fn reply_integer(self, number: u64) {
        let number = c_longlong::try_from(number).unwrap_or(c_longlong::MAX);
        self.reply_signed(number);
    }

    /// Replies with an integer that may be negative.
    pub fn reply_signed(self, number: i64) {
        // SAFETY: the context is valid.
        unsafe { api!(RedisModule_ReplyWithLongLong(self.raw, number)) };
    }

    /// Replies with a name and a number, as a part of a map.
    pub fn reply_field(self, name: &[u8], number: u64) {
        self.reply_bytes(name);
        self.reply_integer(number);
    }

    /// Replies with a bulk string.
    pub fn reply_bytes(self, bytes: &[u8]) {
        // SAFETY: the context is valid, and the server copies the bytes.
        unsafe { api!(RedisModule_ReplyWithStringBuffer(self.raw, bytes.as_ptr().cast(), bytes.len())) };
    }

    pub fn reply_simple(self, text: &CStr) {
        // SAFETY: the context is valid, and the server copies the text.
        unsafe { api!(RedisModule_ReplyWithSimpleString(self.raw, text.as_ptr())) };
    }

    /// Replies with null; in RESP2 with the null array.
    pub fn reply_null_array(self) {
        // SAFETY: the context is valid.
        unsafe { api!(RedisModule_ReplyWithNullArray(self.raw)) };
    }

    /// Replies with null in place of a string; in RESP2 with the null bulk string.
    pub fn reply_null(self) {
        // SAFETY: the context is valid.
        unsafe { api!(RedisModule_ReplyWithNull(self.raw)) };
    }

    /// Begins an array of `len` replies.
    pub fn reply_array(self, len: usize) {
        // SAFETY: the context is valid.
        unsafe { api!(RedisModule_ReplyWithArray(self.raw, length(len))) };
    }

    /// Begins a map of `len` pairs of replies; in RESP2 an array of twice as many replies.
    pub fn reply_map(self, len: usize) {
        // SAFETY: the context is valid.
        unsafe { api!(RedisModule_ReplyWithMap(self.raw, length(len))) };
    }

    /// Replies with an error. `text` begins with the error's word.
    pub fn reply_error(self, text: &str) {
        let text = CString::new(text).unwrap_or_default();
        // SAFETY: the context is valid, and the server copies the text.
        unsafe { api!(RedisModule_ReplyWithError(self.raw, text.as_ptr())) };
    }

    /// Replies that the number of arguments is wrong.
    pub fn reply_wrong_arity(self) {
        // SAFETY: the context is valid.
        unsafe { api!(RedisModule_WrongArity(self.raw)) };
    }

    /// Sends the client the reply of a command that the module has called. The module must have called the command in
    /// the client's version of the protocol.
    pub fn reply_with(self, reply: &CallReply) {
        // SAFETY: the context and the reply are valid.
        unsafe { api!(RedisModule_ReplyWithCallReply(self.raw, reply.as_ptr())) };
    }

    /// Sends a command with a key and a payload to replicas and the AOF. Returns false if the server has no
    /// such command.
    pub fn replicate(self, command: &CStr, name: &KeyName<'_>, payload: &[u8]) -> bool {
        // SAFETY: the format string names a string of the server and a buffer with its length, and these arguments
        // follow.
        let status = unsafe {
            api!(RedisModule_Replicate(
                self.raw,
                command.as_ptr(),
                c"sb".as_ptr(),
                name.as_ptr(),
                payload.as_ptr().cast::<c_char>(),
                payload.len(),
            ))
        };
        status == raw::REDISMODULE_OK as c_int
    }

    /// Sends the running command to replicas and the AOF as the client sent it.
    pub fn replicate_verbatim(self) {
        // SAFETY: the context is valid.
        unsafe { api!(RedisModule_ReplicateVerbatim(self.raw)) };
    }

    /// Signals a changed key to WATCH and client-side caches.
    pub fn signal_modified(self, name: &KeyName<'_>) {
        // SAFETY: the context and the name are valid.
        unsafe { api!(RedisModule_SignalModifiedKey(self.raw, name.as_ptr())) };
    }

    /// Publishes a keyspace event.
    pub fn notify(self, event: Event, name: &KeyName<'_>) {
        let (class, text) = match event {
            Event::Acquired => (raw::REDISMODULE_NOTIFY_MODULE, c"lock.acquired"),
            Event::Released => (raw::REDISMODULE_NOTIFY_MODULE, c"lock.released"),
            Event::Renewed => (raw::REDISMODULE_NOTIFY_MODULE, c"lock.renewed"),
            Event::LeaseOver => (raw::REDISMODULE_NOTIFY_EXPIRED, c"expired"),
        };
        // SAFETY: the context, the text and the name are valid.
        unsafe { api!(RedisModule_NotifyKeyspaceEvent(self.raw, class, text.as_ptr(), name.as_ptr())) };
    }

    /// Calls the module's entry point once, when the running command is over. If the command runs in a transaction,
    /// script or function, the server makes this call when the whole transaction, script or function is over.
    ///
    /// Returns false if the server will not make this call: on Redis 7.0, while the server loads data, and on a
    /// read-only replica.
    pub fn call_when_over(self) -> bool {
        // SAFETY: the context is valid, and the callback takes no data.
        let status = unsafe {
            raw::RedisModule_AddPostNotificationJob
                .map(|add| add(self.raw, entry_points().over, ptr::null_mut(), None))
        };
        status == Some(raw::REDISMODULE_OK as c_int)
    }

    /// Whether writes must wait, because the server has paused clients for CLIENT PAUSE, a failover or a shutdown. If a
    /// module writes in the background during a pause, the server crashes.
    pub fn paused() -> bool {
        // SAFETY: the function takes no arguments.
        unsafe { api!(RedisModule_AvoidReplicaTraffic()) != 0 }
    }
}

/// The flags of the server, without the flags of a client. Reading these flags needs no context, and takes less time.
pub fn global_flags() -> Flags {
    // SAFETY: the API allows a null context.
    let flags = unsafe { api!(RedisModule_GetContextFlags(ptr::null_mut())) };
    Flags(flags.cast_unsigned())
}

static MODULE_CONTEXT: AtomicPtr<raw::RedisModuleCtx> = AtomicPtr::new(ptr::null_mut());

/// Makes the module's context. Called once, when the module is loaded.
pub fn create_module_context(context: Context) {
    // SAFETY: the context is valid. The new context is never freed, because the module cannot be unloaded.
    let detached = unsafe { api!(RedisModule_GetDetachedThreadSafeContext(context.as_ptr())) };
    MODULE_CONTEXT.store(detached, Ordering::Relaxed);
}

/// A context that is valid as long as the module is loaded, for work outside of a callback.
pub fn module_context() -> Context {
    // SAFETY: this context is valid as long as the module is loaded.
    unsafe { Context::new(MODULE_CONTEXT.load(Ordering::Relaxed)) }
}
