//! Connections to all primaries, for the subcommands that read locks.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use lockward_client::Address;
use redis::{
    ClientTlsConfig, Cmd, Connection, ConnectionAddr, ConnectionInfo, FromRedisValue, RedisError,
    TlsCertificates, Value,
};

use crate::failure::Failure;
use crate::locks::{Contended, Lock, info_command};
use crate::server::Server;
use crate::text;

const REPLY_LIMIT: Duration = Duration::from_secs(5);

/// The options that name the servers
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

    /// For rediss://, the certificates of the CA [default: those of the system]
    #[arg(long, value_name = "FILE")]
    cacert: Option<PathBuf>,

    /// For rediss://, the certificate of this client
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    cert: Option<PathBuf>,

    /// For rediss://, the private key of this client
    #[arg(long = "key", id = "tls_key", value_name = "FILE", requires = "cert")]
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

/// Finds the primaries, but does not connect to them: the server of the URL, the primary that Sentinels name, or the
/// primaries of a cluster.
pub(crate) fn find(url: &ServerUrl) -> Result<Vec<ConnectionInfo>, Failure> {
    match url.address()? {
        Address::Server(info) => Ok(vec![info]),
        Address::Sentinels { sentinels, name, server } => first_answer(sentinels, |sentinel, _| {
            let query = redis::cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(&name).to_owned();
            let primary: Option<(String, u16)> = query.query(sentinel)?;
            let unknown = (
                redis::ErrorKind::MasterNameNotFoundBySentinel,
                "the Sentinel knows no primary by that name",
            );
            let (host, port) = primary.ok_or(unknown)?;
            Ok(vec![with_host_and_port(&server, host, port)])
        }),
        Address::Cluster(nodes) => first_answer(nodes, |node, info| {
            let ranges = redis::cmd("CLUSTER").arg("SLOTS").query::<Vec<Vec<Value>>>(node)?;
            let mut primaries: Vec<ConnectionInfo> = Vec::new();
            for primary in ranges.into_iter().filter_map(|range| range.into_iter().nth(2)) {
                let address: Vec<Value> = redis::from_redis_value(primary)?;
                let [host, port, ..] = address.as_slice() else {
                    return Err((redis::ErrorKind::UnexpectedReturnType, "a node without an address").into());
                };
                let host: Option<String> = redis::from_redis_value_ref(host)?;
                let port = redis::from_redis_value_ref(port)?;
                // A node that does not know its own host sends no host. This program has reached that node at the host
                // in `info`.
                let host = host.filter(|host| !matches!(&**host, "" | "?")).or_else(|| host_of(info));
                let primary = with_host_and_port(info, host.unwrap_or_default(), port);
                if primaries.iter().all(|other| other.addr() != primary.addr()) {
                    primaries.push(primary);
                }
            }
            Ok(primaries)
        }),
    }
}

/// Asks these servers one after the other, and returns the first answer.
fn first_answer(
    servers: Vec<ConnectionInfo>,
    ask: impl Fn(&mut Connection, &ConnectionInfo) -> Result<Vec<ConnectionInfo>, RedisError>,
) -> Result<Vec<ConnectionInfo>, Failure> {
    let mut failure = Failure::new("the URL names no server");
    for info in servers {
        let asked = Server::new(info.clone()).and_then(|server| server.connect(REPLY_LIMIT));
        match asked.and_then(|mut connection| Ok(ask(&mut connection, &info)?)) {
            Ok(answer) => return Ok(answer),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

fn host_of(info: &ConnectionInfo) -> Option<String> {
    match info.addr() {
        ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => Some(host.clone()),
        ConnectionAddr::Unix(_) | _ => None,
    }
}

/// The same connection settings, for another host and port.
fn with_host_and_port(like: &ConnectionInfo, host: String, port: u16) -> ConnectionInfo {
    let addr = match like.addr() {
        ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
            ConnectionAddr::TcpTls { host, port, insecure: *insecure, tls_params: tls_params.clone() }
        }
        ConnectionAddr::Tcp(..) | ConnectionAddr::Unix(_) | _ => ConnectionAddr::Tcp(host, port),
    };
    like.clone().set_addr(addr)
}

/// A connection to each primary.
pub(crate) struct Primaries {
    all: Vec<(Server, Connection)>,
}

impl Primaries {
    /// Finds the primaries and connects to them. Fails if a primary does not have the module.
    pub(crate) fn connect(url: &ServerUrl) -> Result<Self, Failure> {
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

    /// Whether these are the same servers.
    pub(crate) fn are(&self, found: &[ConnectionInfo]) -> bool {
        self.addresses().eq(found.iter().map(|info| info.addr().to_string()))
    }

    pub(crate) fn connections(&mut self) -> impl Iterator<Item = &mut Connection> {
        self.all.iter_mut().map(|(_, connection)| connection)
    }

    /// Sends LOCK.INFO. The reply has at most the first `holders` holders and the first `waiters` waiters.
    pub(crate) fn info(&mut self, key: &[u8], holders: u64, waiters: u64) -> Result<Option<Lock>, Failure> {
        self.query(&info_command(key, holders, Some(waiters))).map_err(|error| match error.code() {
            Some("WRONGTYPE") => {
                Failure::new(format!("{} is not a lock: the key has another type", text::show(key)))
            }
            _ => error.into(),
        })
    }

    /// Sends LOCK.TOP to all primaries, and merges the replies. Returns the `count` locks with the most waiters, most
    /// waiters first.
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
