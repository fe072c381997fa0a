//! A server, and the connections to it.

use std::io::{self, ErrorKind};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use redis::ErrorKind::InvalidClientConfig;
use redis::{Client, Cmd, Connection, ConnectionInfo, ProtocolVersion, RedisError, Value};

use crate::failure::{self, Failure};

/// A server and how to connect to it.
#[derive(Clone)]
pub(crate) struct Server {
    client: Client,
    address: String,
    /// How long to wait for an answer.
    patience: Duration,
}

/// A connection, and the warning for the user if the server is a replica.
pub(crate) type Connected = (Connection, Option<String>);

impl Server {
    pub(crate) fn new(info: ConnectionInfo, patience: Duration) -> Result<Self, Failure> {
        // `watch` receives events and replies on one connection. RESP2 has no such connections.
        let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        // The redis crate shows the reply of a server that accepts no more clients only if it has sent one command.
        let settings = settings.set_skip_set_lib_name();
        let info = info.set_redis_settings(settings);
        // Messages show this address instead of the URL, because the URL may contain a password.
        let address = info.addr().to_string();
        Ok(Self { client: Client::open(info)?, address, patience })
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    pub(crate) fn info(&self) -> &ConnectionInfo {
        self.client.get_connection_info()
    }

    pub(crate) fn patience(&self) -> Duration {
        self.patience
    }

    /// Opens a connection. A request on this connection fails if the server does not answer within `patience`.
    pub(crate) fn connect(&self) -> Result<Connection, Failure> {
        let (sender, connected) = mpsc::channel();
        let (client, patience) = (self.client.clone(), self.patience);
        // The timeout of the redis crate does not limit the look-up of the host name, and applies to each reply of the
        // handshake. So another thread connects, and this thread waits for the connection for at most `patience`.
        thread::spawn(move || {
            let _ = sender.send(client.get_connection_with_timeout(patience));
        });
        let timed_out = |_| Err(io::Error::from(ErrorKind::TimedOut).into());
        let connection = connected.recv_timeout(patience).unwrap_or_else(timed_out);
        let set_up = connection.and_then(|connection| {
            connection.set_read_timeout(Some(patience))?;
            connection.set_write_timeout(Some(patience))?;
            Ok(connection)
        });
        set_up.map_err(|error| self.failure(&error))
    }

    /// Opens a connection to a server that must have the lock commands.
    pub(crate) fn connect_with_module(&self) -> Result<Connected, Failure> {
        let mut connection = self.connect()?;
        let questions =
            [redis::cmd("COMMAND").arg("INFO").arg("LOCK.ACQUIRE").to_owned(), redis::cmd("ROLE")];
        let answers = send_all(&mut connection, &questions).map_err(|error| self.failure(&error))?;
        let mut replica_warning = None;
        for answer in answers {
            match answer {
                // A user without the right to COMMAND or ROLE may still have the right to the lock commands.
                Err(error) if error.code() == Some("NOPERM") => {}
                Err(error) => return Err(self.failure(&error)),
                Ok(Value::Array(commands)) if commands == [Value::Nil] => {
                    let line = format!("the server at {} does not have the Lockward module", self.address);
                    return Err(Failure::new(line));
                }
                Ok(answer) => replica_warning = self.replica_warning(&answer),
            }
        }
        Ok((connection, replica_warning))
    }

    /// The warning for the user, if this reply to ROLE is that of a replica.
    fn replica_warning(&self, role: &Value) -> Option<String> {
        let Value::Array(role) = role else { return None };
        let [Value::BulkString(role), Value::BulkString(host), Value::Int(port), ..] = role.as_slice() else {
            return None;
        };
        let (address, host) = (&self.address, String::from_utf8_lossy(host));
        (role == b"slave").then(|| {
            format!(
                "the server at {address} is a replica, so it does not know the waiters. Its primary is {host}:{port}"
            )
        })
    }

    /// The failure of a request to this server.
    pub(crate) fn failure(&self, error: &RedisError) -> Failure {
        let address = &self.address;
        if error.is_timeout() {
            let patience = self.patience;
            Failure::new(format!("cannot reach a Redis server at {address}: no answer within {patience:?}"))
        } else if error.is_io_error() || error.is_connection_dropped() || error.kind() == InvalidClientConfig
        {
            Failure::new(format!("cannot reach a Redis server at {address}: {}", failure::reason(error)))
        } else if error.code() == Some("NOAUTH") {
            Failure::new(format!("the server at {address} needs a password"))
        } else {
            Failure::new(format!("the server at {address} refused a command: {}", failure::reason(error)))
        }
    }
}

/// Asks all servers at the same time, each server in a thread of its own. Returns the answers in the order in which they
/// arrive.
pub(crate) fn ask_all<T: Send + 'static>(
    servers: Vec<Server>,
    ask: impl Fn(&Server) -> Result<T, Failure> + Clone + Send + 'static,
) -> Receiver<Result<T, Failure>> {
    let (sender, answers) = mpsc::channel();
    for server in servers {
        let (sender, ask) = (sender.clone(), ask.clone());
        thread::spawn(move || {
            // Nobody receives this answer if an earlier answer was enough.
            let _ = sender.send(ask(&server));
        });
    }
    answers
}

/// The answers, and the failures of the servers that did not answer. Fails if no server answers.
pub(crate) fn all_answers<T>(from: Receiver<Result<T, Failure>>) -> Result<(Vec<T>, Vec<Failure>), Failure> {
    let (mut answers, mut failures) = (Vec::new(), Vec::new());
    for answer in from {
        match answer {
            Ok(answer) => answers.push(answer),
            Err(failure) => failures.push(failure),
        }
    }
    if answers.is_empty() { Err(Failure::all(&failures)) } else { Ok((answers, failures)) }
}

/// The first answer that is not `None`. Does not wait for the other servers.
pub(crate) fn first_answer<T>(from: Receiver<Result<Option<T>, Failure>>) -> Result<T, Failure> {
    let mut failures = Vec::new();
    for answer in from {
        match answer {
            Ok(Some(answer)) => return Ok(answer),
            Ok(None) => {}
            Err(failure) => failures.push(failure),
        }
    }
    Err(Failure::all(&failures))
}

/// Sends commands in one request. Fails at the first reply that does not arrive. A pipeline of the redis crate would then
/// wait for each of the other replies too.
pub(crate) fn send_all(
    connection: &mut Connection,
    commands: &[Cmd],
) -> Result<Vec<Result<Value, RedisError>>, RedisError> {
    let mut request = Vec::new();
    commands.iter().for_each(|command| command.write_packed_command(&mut request));
    connection.send_packed_command(&request)?;
    commands.iter().map(|_| Ok(connection.recv_response()?.extract_error())).collect()
}
