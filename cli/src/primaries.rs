//! The options that name the servers, and the primaries behind them.

use std::path::{Path, PathBuf};
use std::sync::mpsc::Receiver;
use std::time::Duration;

use clap::Args;
use lockward_client::{Address, Error};
use redis::{
    ClientTlsConfig, Connection, ConnectionAddr, ConnectionInfo, ErrorKind, RedisError, TlsCertificates,
    Value,
};

use crate::duration;
use crate::failure::Failure;
use crate::output;
use crate::server::{Server, ask_all, first_answer};

/// The options that name the servers
#[derive(Args, Clone)]
pub(crate) struct ServerUrl {
    /// The server, Sentinels or cluster: redis://host:port/db, redis+sentinel://host:port,host:port/name,
    /// redis+cluster://host:port,host:port
    #[arg(
        long,
        global = true,
        env = "LOCKWARD_URL",
        hide_env_values = true,
        value_name = "URL",
        default_value = "redis://127.0.0.1:6379"
    )]
    url: String,

    /// For rediss://, the certificates of the CA [default: those of the system]
    #[arg(long, global = true, value_name = "FILE")]
    cacert: Option<PathBuf>,

    /// For rediss://, the certificate of this client
    #[arg(long, global = true, value_name = "FILE", requires = "tls_key")]
    cert: Option<PathBuf>,

    /// For rediss://, the private key of this client
    #[arg(long = "key", id = "tls_key", global = true, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
}

impl ServerUrl {
    pub(crate) fn address(&self) -> Result<Address, Failure> {
        // The errors of the client do not show the URL, because it may contain a password.
        let invalid = |error: Error| Failure::new(error.to_string());
        let address: Address = self.url.parse().map_err(invalid)?;
        if self.cacert.is_none() && self.cert.is_none() {
            return Ok(address);
        }
        let root_cert = self.cacert.as_deref().map(read).transpose()?;
        let client_tls = match (&self.cert, &self.key) {
            (Some(cert), Some(key)) => {
                Some(ClientTlsConfig { client_cert: read(cert)?, client_key: read(key)? })
            }
            _ => None,
        };
        let certificates = TlsCertificates { client_tls, root_cert };
        address.certificates(&certificates).map_err(invalid)
    }
}

fn read(file: &Path) -> Result<Vec<u8>, Failure> {
    std::fs::read(file).map_err(|error| Failure::new(format!("cannot read {}: {error}", file.display())))
}

/// The options of the subcommands that read locks
#[derive(Args, Clone)]
pub(crate) struct Servers {
    #[command(flatten)]
    url: ServerUrl,

    /// Give up on a server that does not answer within this time
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = duration::parse_positive)]
    patience: Duration,
}

impl Servers {
    /// Checks that the URL and the certificates are valid.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        self.url.address().map(drop)
    }

    /// Finds the primaries: the server of the URL, the primary that a Sentinel names, or the primaries of a cluster.
    /// Does not connect to the primaries. In a cluster, also asks the nodes that were found `before`, because the nodes in
    /// the URL may not answer any more.
    pub(crate) fn primaries(&self, before: &[Server]) -> Result<Vec<Server>, Failure> {
        let address = self.url.address()?;
        let asked = match &address {
            Address::Server(info) => return Ok(vec![self.server(info.clone())?]),
            Address::Sentinels { sentinels, .. } => sentinels.clone(),
            Address::Cluster(nodes) => nodes.iter().chain(before.iter().map(Server::info)).cloned().collect(),
        };
        let asked: Result<_, Failure> = asked.into_iter().map(|info| self.server(info)).collect();
        let found = first_answer(ask_all(asked?, move |server| {
            let mut connection = server.connect()?;
            let found = if let Address::Sentinels { name, server, .. } = &address {
                sentinel_primary(&mut connection, name, server)
            } else {
                cluster_primaries(&mut connection, server.info())
            };
            found.map(Some).map_err(|error| server.failure(&error))
        }))?;
        found.into_iter().map(|info| self.server(info)).collect()
    }

    fn server(&self, info: ConnectionInfo) -> Result<Server, Failure> {
        Server::new(info, self.patience)
    }

    /// Asks all primaries at the same time. Returns the answers in the order in which they arrive.
    pub(crate) fn ask_each<T: Send + 'static>(
        &self,
        ask: impl Fn(&Server, &mut Connection) -> Result<T, RedisError> + Clone + Send + 'static,
    ) -> Result<Receiver<Result<T, Failure>>, Failure> {
        Ok(ask_all(self.primaries(&[])?, move |server| {
            let (mut connection, warning) = server.connect_with_module()?;
            warning.iter().for_each(|warning| output::complain(warning));
            ask(server, &mut connection).map_err(|error| server.failure(&error))
        }))
    }
}

/// The primary that a Sentinel knows by this name. `server` says how to connect to the primary.
fn sentinel_primary(
    sentinel: &mut Connection,
    name: &str,
    server: &ConnectionInfo,
) -> Result<Vec<ConnectionInfo>, RedisError> {
    let query = redis::cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(name).to_owned();
    let primary: Option<(String, u16)> = query.query(sentinel)?;
    let unknown = "the Sentinel knows no primary by that name";
    let (host, port) = primary.ok_or((ErrorKind::MasterNameNotFoundBySentinel, unknown))?;
    Ok(vec![with_host_and_port(server, &host, port)])
}

/// The primaries of a cluster, as one of its nodes knows them.
fn cluster_primaries(
    node: &mut Connection,
    info: &ConnectionInfo,
) -> Result<Vec<ConnectionInfo>, RedisError> {
    let mut primaries: Vec<ConnectionInfo> = Vec::new();
    for range in redis::cmd("CLUSTER").arg("SLOTS").query::<Vec<Vec<Value>>>(node)? {
        // A range has its first and last slot, its primary and its replicas.
        let Some(Value::Array(primary)) = range.into_iter().nth(2) else { continue };
        // A primary has its host, its port, and more.
        let (host, port): (Option<String>, u16) =
            redis::from_redis_value(Value::Array(primary.into_iter().take(2).collect()))?;
        let primary = with_host_and_port(info, &host.unwrap_or_default(), port);
        if primaries.iter().all(|other| other.addr() != primary.addr()) {
            primaries.push(primary);
        }
    }
    Ok(primaries)
}

/// The same connection settings, for another host and port. A node that does not know its own host sends an empty host
/// or `?`. In this case the result has the host of `like`, where this program has reached the node.
fn with_host_and_port(like: &ConnectionInfo, host: &str, port: u16) -> ConnectionInfo {
    let mut addr = like.addr().clone();
    if let ConnectionAddr::Tcp(to, at) | ConnectionAddr::TcpTls { host: to, port: at, .. } = &mut addr {
        *at = port;
        if !matches!(host, "" | "?") {
            host.clone_into(to);
        }
    }
    like.clone().set_addr(addr)
}
