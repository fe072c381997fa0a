//! A proxy between a correct client and its server. The proxy changes the traffic, so that the server sees a client with
//! a defect.

use crate::defects::Defect;
use crate::scripted_server::Messages;
use lockward_tests::{Client, Listener, Reply, encode, locked};
use std::collections::VecDeque;
use std::io::{self, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use std::{mem, thread};

/// Starts a proxy for the server on `upstream`.
pub(crate) fn start(upstream: u16, defect: Option<Defect>) -> Listener {
    let proxy = Arc::new(SpoilingProxy { upstream, defect, state: Mutex::default() });
    Listener::start(move |client| {
        let proxy = Arc::clone(&proxy);
        thread::spawn(move || proxy.serve(&client));
    })
}

struct SpoilingProxy {
    upstream: u16,
    defect: Option<Defect>,
    state: Mutex<State>,
}

/// What the proxy remembers of earlier requests.
#[derive(Default)]
struct State {
    requests: Vec<Vec<String>>,
    /// Whether the client's next renewal confirms the grant of a wait.
    has_waited: bool,
    /// With [`Defect::LateRelease`]: the last release.
    late_release: Option<Vec<String>>,
}

enum Fate {
    Forwarded,
    /// The client gets this reply, and the server does not see the request.
    Answered(Vec<u8>),
    /// The client gets no reply, and the server does not see the request.
    Dropped,
}

/// A request without a reply.
struct Pending {
    request: Vec<String>,
    /// The reply that the client gets in place of the server's reply.
    reply: Option<Vec<u8>>,
}

type Queue = Mutex<VecDeque<Pending>>;

impl SpoilingProxy {
    fn serve(&self, client: &TcpStream) {
        let Ok(server) = TcpStream::connect(("127.0.0.1", self.upstream)) else { return };
        let pending = Queue::default();
        let close = || [client, &server].map(|stream| stream.shutdown(Shutdown::Both).is_ok());
        thread::scope(|scope| {
            scope.spawn(|| {
                let _ = self.return_replies(&server, client, &pending);
                close();
            });
            let _ = self.forward_requests(client, &server, &pending);
            close();
        });
    }

    fn forward_requests(
        &self,
        client: &TcpStream,
        mut server: &TcpStream,
        pending: &Queue,
    ) -> io::Result<()> {
        let mut requests = Messages::new(client.try_clone()?);
        server.set_nodelay(true)?;
        loop {
            let mut request: Vec<String> = requests.next()?.0.items().iter().map(Reply::text).collect();
            if self.defect == Some(Defect::RenewsOneByOne) && request[0] == "LOCK.RENEW" {
                while !locked(pending).is_empty() {
                    thread::sleep(Duration::from_millis(1));
                }
            }
            let (bytes, reply) = match self.spoil(&mut request) {
                Fate::Forwarded => (encode(&request), None),
                // The server gets another command, so that all replies stay in order.
                Fate::Answered(reply) => (encode(&["PING"]), Some(reply)),
                Fate::Dropped => continue,
            };
            let is_repeated = self.defect == Some(Defect::RepeatsGuarded) && request[0] == "LOCK.GUARD";
            locked(pending).push_back(Pending { request, reply });
            server.write_all(&bytes)?;
            if is_repeated {
                thread::sleep(Duration::from_millis(200));
                locked(pending).back().into_iter().for_each(|lost| self.send(&lost.request));
            }
        }
    }

    /// Decides the fate of a request, and changes the request.
    fn spoil(&self, request: &mut Vec<String>) -> Fate {
        let mut state = locked(&self.state);
        let is_repeated = state.requests.contains(request);
        state.requests.push(request.clone());
        let none_left = || Fate::Answered(b":0\r\n".to_vec());
        let Some(defect) = self.defect else { return Fate::Forwarded };
        match (defect, &*request[0]) {
            (Defect::NoKeep, "LOCK.ACQUIRE") => {
                if let Some(keep) = request.iter().position(|word| word == "KEEP") {
                    request.drain(keep..keep + 2);
                }
            }
            (Defect::NewOwner, "LOCK.ACQUIRE") if is_repeated => request[2].push_str("-again"),
            (Defect::NoConfirm, "LOCK.ACQUIRE") => {
                state.has_waited = request.iter().any(|word| word == "BLOCK");
            }
            (Defect::NoConfirm, "LOCK.RENEW") if mem::take(&mut state.has_waited) => {
                let token = request.iter().skip_while(|word| *word != "TOKEN").nth(1).expect("a token");
                return Fate::Answered(format!(":{token}\r\n").into_bytes());
            }
            (Defect::UnsortedKeys, name) if name.starts_with("LOCK.") => {
                request[1] = match &*request[1] {
                    "k" => "l".to_owned(),
                    "l" => "k".to_owned(),
                    other => other.to_owned(),
                };
            }
            (Defect::NoGiveUp, "LOCK.RELEASE") if request[3] == "HOLDS" => return none_left(),
            (Defect::OneRelease | Defect::LateRelease, "LOCK.RELEASE") if is_repeated => return none_left(),
            (Defect::LateRelease, "LOCK.RELEASE") => {
                state.late_release = Some(request.clone());
                return Fate::Dropped;
            }
            _ => {}
        }
        Fate::Forwarded
    }

    fn return_replies(&self, server: &TcpStream, mut client: &TcpStream, pending: &Queue) -> io::Result<()> {
        let mut replies = Messages::new(server.try_clone()?);
        client.set_nodelay(true)?;
        loop {
            let (reply, mut bytes) = replies.next()?;
            let Some(Pending { request, reply: other }) = locked(pending).pop_front() else { return Ok(()) };
            bytes = other.unwrap_or(bytes);
            if let Reply::Error(text) = &reply
                && self.defect == Some(Defect::BlindRelease)
                && request[0] == "LOCK.RELEASE"
                && text.starts_with("NOTHELD")
            {
                bytes = b":0\r\n".to_vec();
            }
            let late_release = locked(&self.state).late_release.take_if(|_| request[0] == "LOCK.ACQUIRE");
            if let Some(release) = late_release {
                self.send(&release);
            }
            client.write_all(&bytes)?;
        }
    }

    /// Sends a request of the proxy's own, and waits a moment for the reply.
    fn send(&self, request: &[String]) {
        // Errors are ignored, because the scenario may have ended.
        let Ok(mut server) = Client::connect(self.upstream) else { return };
        let _ = server.try_send(request.join(" "));
        let _ = server.reply_within(Duration::from_millis(200));
    }
}
