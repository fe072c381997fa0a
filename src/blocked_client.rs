//! A blocked client.

use crate::server::Socket;
use redis_module::raw::RedisModuleBlockedClient;
use std::hash::{Hash, Hasher};
use std::ptr::NonNull;

/// A client that the server holds blocked for us. Known by its handle: two are the same when their handles are.
#[derive(Clone, Copy, Debug)]
pub struct BlockedClient {
    handle: NonNull<RedisModuleBlockedClient>,
    /// The client's id, for LOCK.INFO.
    pub id: u64,
    /// Whether the server minted the owner, and so must tell it.
    pub minted: bool,
    /// Its connection, where the server tells.
    pub socket: Option<Socket>,
}

impl BlockedClient {
    /// The client behind `handle`.
    pub const fn new(
        handle: NonNull<RedisModuleBlockedClient>,
        id: u64,
        minted: bool,
        socket: Option<Socket>,
    ) -> Self {
        Self { handle, id, minted, socket }
    }

    /// The client behind `handle`, to look it up by.
    pub const fn behind(handle: NonNull<RedisModuleBlockedClient>) -> Self {
        Self::new(handle, 0, false, None)
    }

    /// The server's handle: valid until the client has been unblocked.
    pub const fn handle(&self) -> NonNull<RedisModuleBlockedClient> {
        self.handle
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
