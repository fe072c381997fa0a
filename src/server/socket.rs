//! Whether there is still somebody at the other end of a client's connection.
//!
//! The server hears of a client that has left when it reads from its connection, once in each turn of its event loop.
//! What is granted in that turn is answered at its end; the socket itself knows more by then.

use crate::server::Context;
use std::ffi::c_longlong;
use std::io::ErrorKind;
use std::mem::ManuallyDrop;
use std::net::TcpStream;
use std::os::fd::{FromRawFd, RawFd};
use std::slice;

/// The socket of one of the server's clients, for as long as that is connected.
#[derive(Clone, Copy, Debug)]
pub struct Socket(RawFd);

impl Socket {
    /// Whether the client has ended or broken its connection, as far as this machine has heard. It is not seen where
    /// the server has yet to read something that the client sent before.
    pub fn is_left(self) -> bool {
        // SAFETY: a descriptor of the server's, which it closes itself: this value is never dropped. The server never
        // waits on its sockets, so that neither does this. Should it not be the client's any more, then this looks at
        // another, and takes nothing from it.
        let stream = ManuallyDrop::new(unsafe { TcpStream::from_raw_fd(self.0) });
        match stream.peek(&mut [0]) {
            Ok(length) => length == 0,
            Err(error) => !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
        }
    }
}

impl Context {
    /// The socket of a client, which the module API does not tell, but CLIENT LIST does.
    pub fn socket(self, client: u64) -> Option<Socket> {
        let id = c_longlong::try_from(client).ok()?;
        // SAFETY:
        // - the format names two C strings and a number, and these follow;
        // - the reply is freed once, after its text has been looked at.
        unsafe {
            let (list, by_id) = (c"LIST".as_ptr(), c"ID".as_ptr());
            let reply =
                api!(RedisModule_Call(self.as_ptr(), c"CLIENT".as_ptr(), c"ccl".as_ptr(), list, by_id, id));
            if reply.is_null() {
                return None;
            }
            let mut len = 0;
            let start = api!(RedisModule_CallReplyStringPtr(reply, &raw mut len));
            let text = if start.is_null() { &[][..] } else { slice::from_raw_parts(start.cast(), len) };
            let socket = descriptor(text).map(Socket);
            api!(RedisModule_FreeCallReply(reply));
            socket
        }
    }
}

fn descriptor(text: &[u8]) -> Option<RawFd> {
    let mut fields = text.split(|byte| *byte == b' ');
    let number = fields.find_map(|field| field.strip_prefix(b"fd="))?;
    std::str::from_utf8(number).ok()?.parse().ok().filter(|number| *number >= 0)
}
