//! Clients that the server keeps blocked for the module.
//!
//! A handle is unblocked exactly once, by the code that takes the waiter out of its wait queue. The server frees the
//! handle some time later, after exactly one callback has taken the pending reply: the callback for the reply, for a
//! disconnect or for CLIENT UNBLOCK.
//!
//! The module does not use the server's own time limit. The module passes a timeout callback only from Redis
//! 7.4 and Valkey 8 on. CLIENT UNBLOCK calls this callback. Older versions lose the reply or crash when a
//! timeout and an unblock happen in the same iteration of the event loop.

use super::context::Context;
use super::entry_points::entry_points;
use super::functions::version;
use super::socket::Socket;
use redis_module::raw;
use std::ffi::c_int;
use std::hash::{Hash, Hasher};
use std::ptr::{self, NonNull};

/// From this version on (Redis 7.4, Valkey 8), CLIENT UNBLOCK and an unblock by the module may happen in the same
/// iteration of the event loop.
const TIMEOUT_SAFE_SINCE: c_int = 0x0007_0400;

/// A client that the server keeps blocked for the module. Two values are equal if their handles are equal.
#[derive(Clone, Copy, Debug)]
pub struct BlockedClient {
    handle: NonNull<raw::RedisModuleBlockedClient>,
    /// The client's id, for LOCK.INFO.
    pub id: u64,
    /// Whether the server generated the owner. If so, the reply to this client contains the owner.
    pub minted: bool,
    /// The client's socket, if known.
    pub socket: Option<Socket>,
}

impl BlockedClient {
    /// Blocks the client of a command. `None` when the server does not let the module block this client.
    pub fn block(context: Context, id: u64, minted: bool, socket: Option<Socket>) -> Option<Self> {
        let entry_points = entry_points();
        let unblock = if version() >= TIMEOUT_SAFE_SINCE { entry_points.unblock } else { None };
        // SAFETY: the context is valid. The server never reads the private data, and has nothing to free.
        let handle =
            unsafe { api!(RedisModule_BlockClient(context.as_ptr(), entry_points.reply, unblock, None, 0)) };
        let handle = NonNull::new(handle)?;
        // SAFETY: the handle has just been made.
        unsafe { api!(RedisModule_SetDisconnectCallback(handle.as_ptr(), entry_points.disconnect)) };
        Some(Self { handle, id, minted, socket })
    }

    /// Whether the client cannot get a reply any more: it has closed its connection, or the server is about to close
    /// the connection because the client's user was deleted. The server reports such a client only later.
    pub fn has_left(self, context: Context) -> bool {
        self.socket.is_some_and(|socket| socket.is_left() || context.is_losing_user(self.id, socket))
    }

    /// Unblocks a client that has left its wait queue.
    pub fn unblock(self) {
        // SAFETY: the handle is unblocked once: its waiter has left the queue and cannot be found there again.
        unsafe { api!(RedisModule_UnblockClient(self.handle.as_ptr(), ptr::null_mut())) };
    }

    /// A value for lookups, which equals the client with this handle.
    pub const fn with_handle(handle: NonNull<raw::RedisModuleBlockedClient>) -> Self {
        Self { handle, id: 0, minted: false, socket: None }
    }

    /// A value for lookups, which equals the client of the running callback.
    pub fn of_callback(context: Context) -> Option<Self> {
        // SAFETY: the context belongs to a callback of a blocked client. The server returns the client's
        // handle or null.
        let handle = unsafe { api!(RedisModule_GetBlockedClientHandle(context.as_ptr())) };
        NonNull::new(handle).map(Self::with_handle)
    }
}

impl PartialEq for BlockedClient {
    fn eq(&self, other: &Self) -> bool {
        self.handle == other.handle
    }
}

impl Eq for BlockedClient {}

impl Hash for BlockedClient {
    fn hash<S: Hasher>(&self, state: &mut S) {
        self.handle.hash(state);
    }
}
