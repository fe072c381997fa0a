//! A port that accepts connections, for a test that plays a server.

use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// A port on which connections are accepted until this value goes out of scope.
#[derive(Debug)]
pub struct Listener {
    port: u16,
    is_over: Arc<AtomicBool>,
}

impl Listener {
    /// Calls `accept` for each connection, on the listener's thread.
    #[track_caller]
    pub fn start(accept: impl Fn(TcpStream) + Send + 'static) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let is_over = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&is_over);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if ends.load(Ordering::SeqCst) {
                    return;
                }
                accept(client);
            }
        });
        Self { port, is_over }
    }

    /// The port of the listener.
    pub const fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        // Wakes the thread that accepts connections.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}
