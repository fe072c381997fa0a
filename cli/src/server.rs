//! A connection to one server.

use std::time::Duration;

use redis::{Client, Connection, ConnectionInfo, RedisError, Value};

use crate::failure::{self, Failure};

const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// The address of a server.
pub(crate) struct Server {
    client: Client,
    address: String,
}

impl Server {
    pub(crate) fn new(info: ConnectionInfo) -> Result<Self, Failure> {
        // Messages show this address instead of the URL, because the URL may contain a password.
        let address = info.addr().to_string();
        Ok(Self { client: Client::open(info)?, address })
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Opens a connection that waits at most `reply_limit` for each reply. This limit must be longer than the wait limit
    /// of a blocking command.
    pub(crate) fn connect(&self, reply_limit: Duration) -> Result<Connection, Failure> {
        let connected = self.client.get_connection_with_timeout(CONNECT_LIMIT);
        let connection = connected.map_err(|error| self.unreachable(&error))?;
        connection.set_read_timeout(Some(reply_limit))?;
        Ok(connection)
    }

    /// Fails if the server behind `connection` lacks the lock commands.
    pub(crate) fn require_module(&self, connection: &mut Connection) -> Result<(), Failure> {
        let known = redis::cmd("COMMAND").arg("INFO").arg("LOCK.ACQUIRE").query::<Vec<Value>>(connection);
        // A user without the right to COMMAND may still have the right to the lock commands.
        let known = match known {
            Err(error) if error.code() == Some("NOPERM") => return Ok(()),
            known => known?,
        };
        if known.iter().all(|command| *command == Value::Nil) {
            let line = format!("the server at {} does not have the Lockward module", self.address);
            return Err(Failure::new(line));
        }
        Ok(())
    }

    fn unreachable(&self, error: &RedisError) -> Failure {
        let address = &self.address;
        if error.is_io_error() {
            Failure::new(format!("cannot reach a Redis server at {address}: {}", failure::cause(error)))
        } else {
            Failure::new(format!("the server at {address} refused the connection: {error}"))
        }
    }
}
