//! Connections to all primaries, for the subcommands that read locks.

use std::time::Duration;

use clap::Args;
use lockward_client::{Address, Client, Error, Settings};
use redis::{Cmd, Connection, ConnectionInfo, FromRedisValue, RedisError};

use crate::exit_code;
use crate::failure::Failure;
use crate::locks::{Contended, Lock, info_command};
use crate::server::Server;
use crate::text;

const REPLY_LIMIT: Duration = Duration::from_secs(5);

/// How long to try while no server answers. Short, because a user waits for the output.
const PATIENCE: Duration = Duration::from_secs(2);

/// The option for the servers
#[derive(Args, Clone)]
pub(crate) struct ServerUrl {
    /// The server, Sentinels or cluster: redis://host:port/db, redis+sentinel://host:port,host:port/name,
    /// redis+cluster://host:port,host:port
    #[arg(
        long,
        env = "LOCKWARD_URL",
        hide_env_values = true,
        value_name = "URL",
        default_value = "redis://127.0.0.1:6379"
    )]
    url: String,
}

impl ServerUrl {
    pub(crate) fn address(&self) -> Result<Address, Failure> {
        // Not the URL: it may contain a password.
        self.url.parse().map_err(|error| Failure::new(format!("the URL is not valid: {error}")))
    }
}

/// Finds the primaries, without a connection to them.
pub(crate) fn find(url: &ServerUrl) -> Result<Vec<ConnectionInfo>, Failure> {
    let address = url.address()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let found = runtime.block_on(async {
        let settings = Settings::default().patience(PATIENCE);
        Client::new(address, settings)?.primaries().await
    });
    found.map_err(|error: Error| Failure::new(error.to_string()))
}

/// A connection to each primary.
pub(crate) struct Primaries {
    all: Vec<(Server, Connection)>,
}

impl Primaries {
    /// Finds the primaries and connects to them. Fails if one does not have the module.
    pub(crate) fn connect(url: &ServerUrl) -> Result<Self, Failure> {
        Self::try_connect(url).map_err(|failure| failure.with_code(exit_code::ERROR))
    }

    fn try_connect(url: &ServerUrl) -> Result<Self, Failure> {
        let mut all = Vec::new();
        for info in find(url)? {
            let server = Server::new(info)?;
            let mut connection = server.connect(REPLY_LIMIT)?;
            server.require_module(&mut connection)?;
            all.push((server, connection));
        }
        Ok(Self { all })
    }

    /// The addresses of the primaries.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = &str> {
        self.all.iter().map(|(server, _)| server.address())
    }

    pub(crate) fn connections(&mut self) -> impl Iterator<Item = &mut Connection> {
        self.all.iter_mut().map(|(_, connection)| connection)
    }

    /// Sends LOCK.INFO. The reply has the first `holders`, and the first `waiters` of the queue.
    pub(crate) fn info(&mut self, key: &[u8], holders: u64, waiters: u64) -> Result<Option<Lock>, Failure> {
        self.query(&info_command(key, holders, Some(waiters))).map_err(|error| match error.code() {
            Some("WRONGTYPE") => {
                Failure::new(format!("{} is not a lock: the key has another type", text::show(key)))
            }
            _ => error.into(),
        })
    }

    /// Sends LOCK.TOP to all primaries and merges the replies: the `count` locks with the most waiters, most waiters first.
    pub(crate) fn most_contended(&mut self, count: u64) -> Result<Vec<Contended>, RedisError> {
        let mut found: Vec<Contended> = Vec::new();
        let top = redis::cmd("LOCK.TOP").arg("COUNT").arg(count).to_owned();
        for connection in self.connections() {
            found.extend(top.query::<Vec<Contended>>(connection)?);
        }
        found.sort_by_key(Contended::rank);
        found.truncate(usize::try_from(count).unwrap_or(usize::MAX));
        Ok(found)
    }

    /// Sends a command to the primary that serves its key.
    pub(crate) fn query<T: FromRedisValue>(&mut self, cmd: &Cmd) -> Result<T, RedisError> {
        let mut moved = None;
        for connection in self.connections() {
            match cmd.query(connection) {
                Err(error) if error.code() == Some("MOVED") => moved = Some(error),
                result => return result,
            }
        }
        Err(moved.unwrap_or_else(|| (redis::ErrorKind::ClusterConnectionNotFound, "no primary").into()))
    }
}
