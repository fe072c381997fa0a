//! Whether a client is still connected.
//!
//! The server notices that a client has left when the server reads from the client's connection, once in each iteration
//! of the event loop. The reply to a grant is sent at the end of the iteration. By then the operating system may
//! already know that the client has left.

use super::call_reply::CallReply;
use super::context::Context;
use std::ffi::{c_int, c_longlong, c_short, c_ulong, c_void};
use std::io::{Error, ErrorKind};
use std::os::fd::RawFd;

/// The socket of one of the server's clients, while the client is connected.
#[derive(Clone, Copy, Debug)]
pub struct Socket {
    descriptor: RawFd,
    /// Whether the client was a user other than the default user when the module looked the socket up.
    has_own_user: bool,
}

impl Socket {
    /// Whether the client has closed or lost its connection, as far as this machine knows. Unread data of the client
    /// does not change the answer. False for a descriptor that is no socket, for example with RDMA.
    pub fn is_left(self) -> bool {
        let mut byte = 0_u8;
        // SAFETY: the buffer has room for one byte and lives through the call. The call does not wait, and
        // the byte stays in the socket.
        let read = unsafe { recv(self.descriptor, (&raw mut byte).cast(), 1, LOOK_ONLY) };
        if read < 0 && Error::last_os_error().kind() == ErrorKind::WouldBlock {
            return false; // The client has sent nothing and is connected. `poll` would cost more.
        }
        let mut socket = Polled { descriptor: self.descriptor, asked: READ_SIDE_ENDED, found: 0 };
        // SAFETY: the count of 1 matches the one entry, which lives through the call. With a limit of 0, the
        // call does not wait.
        let found = unsafe { poll(&raw mut socket, 1, 0) };
        found == 1 && socket.found & (READ_SIDE_ENDED | HUNG_UP) != 0
    }
}

/// POLLRDHUP, which only Linux has. On other systems, the module sees that a client has left only when both directions
/// of the connection are closed.
const READ_SIDE_ENDED: c_short = if cfg!(target_os = "linux") { 0x2000 } else { 0 };
/// POLLHUP. POLLERR is left out, because it also reports messages in the error queue of a healthy socket.
const HUNG_UP: c_short = 0x10;

/// MSG_PEEK | MSG_DONTWAIT.
const LOOK_ONLY: c_int = if cfg!(target_os = "linux") { 0x42 } else { 0x82 };

/// `struct pollfd`.
#[repr(C)]
struct Polled {
    descriptor: RawFd,
    asked: c_short,
    found: c_short,
}

unsafe extern "C" {
    fn recv(socket: RawFd, room: *mut c_void, len: usize, flags: c_int) -> isize;
    fn poll(sockets: *mut Polled, count: c_ulong, limit: c_int) -> c_int;
}

impl Context {
    /// The socket of a client, from CLIENT LIST, because the module API does not report sockets.
    pub fn socket(self, client: u64) -> Option<Socket> {
        let line = self.client_list(client)?;
        let has_own_user = field(line.root().text(), b"user=").is_some_and(|user| user != b"default");
        descriptor(line.root().text()).map(|descriptor| Socket { descriptor, has_own_user })
    }

    /// Whether the server is about to close the connection of this client because the client's user was deleted. The
    /// server makes such a client the default user at once, but closes the connection after the present command or
    /// transaction. Most clients need no look at CLIENT LIST.
    pub fn is_losing_user(self, client: u64, socket: Socket) -> bool {
        socket.has_own_user
            && self.is_default_user(client)
            && self.client_list(client).is_some_and(|line| {
                field(line.root().text(), b"flags=").is_some_and(|flags| flags.contains(&b'A'))
            })
    }

    /// The line of a client in CLIENT LIST.
    fn client_list(self, client: u64) -> Option<CallReply> {
        let id = c_longlong::try_from(client).ok()?;
        let (list, by_id) = (c"LIST".as_ptr(), c"ID".as_ptr());
        // SAFETY: the format string names two C strings and a number, and these arguments follow. `CallReply` takes
        // over the reply.
        unsafe {
            CallReply::new(api!(RedisModule_Call(
                self.as_ptr(),
                c"CLIENT".as_ptr(),
                c"ccl".as_ptr(),
                list,
                by_id,
                id
            )))
        }
    }
}

/// A field of a line in CLIENT LIST. The search begins at the end, because the address and the name before the field
/// may contain any bytes.
fn field<'a>(line: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    line.rsplit(|byte| *byte == b' ').find_map(|field| field.strip_prefix(name))
}

fn descriptor(text: &[u8]) -> Option<RawFd> {
    let number = field(text, b"fd=")?;
    std::str::from_utf8(number).ok()?.parse().ok().filter(|number| *number >= 0)
}
