//! The servers that have locks, for subcommands that look at them.

use std::time::Duration;

use clap::Args;
use lockward_client::{Address, Client, Error, Settings};
use redis::{Cmd, Connection, FromRedisValue, RedisError};

use crate::failure::Failure;
use crate::locks::{Lock, info};
use crate::server::Server;
use crate::text;

/// The exit code of a subcommand that looks, when it cannot.
pub(crate) const TROUBLE: u8 = 2;

const REPLY_LIMIT: Duration = Duration::from_secs(5);

/// How long to look for a server that answers. Somebody is looking.
const PATIENCE: Duration = Duration::from_secs(2);

/// Where the servers are
#[derive(Args, Clone)]
pub(crate) struct Place {
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

impl Place {
    pub(crate) fn address(&self) -> Result<Address, Failure> {
        // Never the URL itself: it may carry a password.
        self.url.parse().map_err(|error| Failure::new(format!("the URL is not understood: {error}")))
    }
}

/// A connection to each primary.
pub(crate) struct Primaries {
    all: Vec<(Server, Connection)>,
}

impl Primaries {
    /// Finds the primaries and connects to them. Fails unless they have the module.
    pub(crate) fn connect(place: &Place) -> Result<Self, Failure> {
        Self::find(place).map_err(|failure| failure.exit(TROUBLE))
    }

    fn find(place: &Place) -> Result<Self, Failure> {
        let address = place.address()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let found = runtime.block_on(async {
            let settings = Settings::default().patience(PATIENCE);
            Client::new(address, settings)?.primaries().await
        });
        let found = found.map_err(|error: Error| Failure::new(error.to_string()))?;
        let mut all = Vec::new();
        for info in found {
            let server = Server::new(info)?;
            let mut connection = server.connect(REPLY_LIMIT)?;
            server.require_module(&mut connection)?;
            all.push((server, connection));
        }
        Ok(Self { all })
    }

    /// Where they are, for people.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = &str> {
        self.all.iter().map(|(server, _)| server.address())
    }

    pub(crate) fn connections(&mut self) -> impl Iterator<Item = &mut Connection> {
        self.all.iter_mut().map(|(_, connection)| connection)
    }

    /// What LOCK.INFO tells of a key, with the first so many of its queue.
    pub(crate) fn look_at(&mut self, key: &[u8], waiters: u64) -> Result<Option<Lock>, Failure> {
        self.ask(&info(key, Some(waiters))).map_err(|error| match error.code() {
            Some("WRONGTYPE") => {
                Failure::new(format!("{} is no lock: the key holds a value of another type", text::show(key)))
            }
            _ => error.into(),
        })
    }

    /// Sends a command to whichever of them serves its key.
    pub(crate) fn ask<T: FromRedisValue>(&mut self, cmd: &Cmd) -> Result<T, RedisError> {
        let mut moved = None;
        for connection in self.connections() {
            match cmd.query(connection) {
                Err(error) if error.code() == Some("MOVED") => moved = Some(error),
                answered => return answered,
            }
        }
        Err(moved.unwrap_or_else(|| (redis::ErrorKind::ClusterConnectionNotFound, "no primary").into()))
    }
}
