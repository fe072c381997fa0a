//! The options that name the servers, and the primaries behind them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use lockward_client::Address;
use redis::{
    ClientTlsConfig, Connection, ConnectionAddr, ConnectionInfo, ErrorKind, RedisError, TlsCertificates,
    Value,
};

use crate::duration;
use crate::failure::Failure;
use crate::output;
use crate::server::{Server, all_answers, ask_all, first_answer};

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
        // The error does not show the URL, because it may contain a password.
        let invalid = |error| Failure::new(format!("the URL is not valid: {error} (see --url in --help)"));
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
        address
            .certificates(&certificates)
            .map_err(|error| Failure::new(format!("the certificates are not valid: {error}")))
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
    /// Does not connect to the primaries.
    pub(crate) fn primaries(&self) -> Result<Vec<Server>, Failure> {
        self.primaries_after(&[])
    }

    /// Finds the primaries, as [`Servers::primaries`] does. In a cluster, also asks the nodes that were found `before`,
    /// because the nodes in the URL may not answer any more.
    pub(crate) fn primaries_after(&self, before: &[Server]) -> Result<Vec<Server>, Failure> {
        let found = match self.url.address()? {
            Address::Server(info) => vec![info],
            Address::Sentinels { sentinels, name, server } => {
                self.ask_any(sentinels, move |_, sentinel| {
                    let query = redis::cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(&name).to_owned();
                    let unknown = "the Sentinel knows no primary by that name";
                    let primary: Option<(String, u16)> = query.query(sentinel)?;
                    let (host, port) = primary.ok_or((ErrorKind::MasterNameNotFoundBySentinel, unknown))?;
                    Ok(vec![with_host_and_port(&server, &host, port)])
                })?
            }
            Address::Cluster(mut nodes) => {
                nodes.extend(before.iter().map(|server| server.info().clone()));
                self.ask_any(nodes, |info, node| {
                    let ranges = redis::cmd("CLUSTER").arg("SLOTS").query::<Vec<Vec<Value>>>(node)?;
                    let mut primaries: Vec<ConnectionInfo> = Vec::new();
                    for primary in ranges.into_iter().filter_map(|range| range.into_iter().nth(2)) {
                        let address: Vec<Value> = redis::from_redis_value(primary)?;
                        let [host, port, ..] = address.as_slice() else {
                            return Err((ErrorKind::UnexpectedReturnType, "a node without an address").into());
                        };
                        let host: Option<String> = redis::from_redis_value_ref(host)?;
                        let port = redis::from_redis_value_ref(port)?;
                        let primary = with_host_and_port(info, &host.unwrap_or_default(), port);
                        if primaries.iter().all(|other| other.addr() != primary.addr()) {
                            primaries.push(primary);
                        }
                    }
                    Ok(primaries)
                })?
            }
        };
        found.into_iter().map(|info| Server::new(info, self.patience)).collect()
    }

    /// Asks these servers at the same time, and returns the first answer.
    fn ask_any(
        &self,
        servers: Vec<ConnectionInfo>,
        ask: impl Fn(&ConnectionInfo, &mut Connection) -> Result<Vec<ConnectionInfo>, RedisError>
        + Clone
        + Send
        + 'static,
    ) -> Result<Vec<ConnectionInfo>, Failure> {
        let servers: Result<_, Failure> =
            servers.into_iter().map(|info| Server::new(info, self.patience)).collect();
        first_answer(ask_all(servers?, move |server| {
            let mut connection = server.connect()?;
            ask(server.info(), &mut connection).map(Some).map_err(|error| server.failure(&error))
        }))
    }

    /// Asks all primaries at the same time. Returns the answers, and the failures of the primaries that did not answer.
    /// Fails if no primary answers.
    pub(crate) fn ask<T: Send + 'static>(
        &self,
        ask: impl Fn(&mut Connection) -> Result<T, RedisError> + Clone + Send + 'static,
    ) -> Result<(Vec<T>, Vec<Failure>), Failure> {
        all_answers(ask_all(self.primaries()?, move |server| {
            let (mut connection, warning) = server.connect_with_module()?;
            warning.iter().for_each(|warning| output::complain(warning));
            ask(&mut connection).map_err(|error| server.failure(&error))
        }))
    }

    /// Asks all primaries at the same time about one key. Returns the answer of the primary that serves the key, and this
    /// primary. Does not wait for the other primaries.
    pub(crate) fn ask_owner<T: Send + 'static>(
        &self,
        ask: impl Fn(&mut Connection) -> Result<T, RedisError> + Clone + Send + 'static,
    ) -> Result<(T, Server), Failure> {
        first_answer(ask_all(self.primaries()?, move |server| {
            let (mut connection, warning) = server.connect_with_module()?;
            let answer = match ask(&mut connection) {
                Err(error) if error.code() == Some("MOVED") => return Ok(None),
                answer => answer.map_err(|error| server.failure(&error))?,
            };
            warning.iter().for_each(|warning| output::complain(warning));
            Ok(Some((answer, server.clone())))
        }))
    }
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
