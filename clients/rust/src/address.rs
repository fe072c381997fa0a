//! Addresses of servers, and their URLs.

use crate::error::Error;
use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisError};

/// Where the servers are, and how to connect to them.
///
/// | URL | meaning |
/// | --- | --- |
/// | `redis://[user:password@]host[:port][/db]`, `unix:///path` | One server that is not a node of a cluster. |
/// | `redis+sentinel://[user:password@]host[:port],host[:port],.../name[/db]` | The primary that Sentinels know by `name`. User, password and database are for the primary. If the Sentinels also need a password, use [`Address::Sentinels`]. |
/// | `redis+cluster://[user:password@]host[:port],host[:port],...` | A cluster. The hosts are some of its nodes. |
///
/// If the URL begins with `rediss` instead of `redis`, all connections use TLS. TLS needs the crate's feature `tls`.
///
/// ```
/// # use lockward_client::Address;
/// let address: Address = "redis+sentinel://:secret@10.0.0.1:26379,10.0.0.2:26379,10.0.0.3:26379/locks".parse()?;
/// # Ok::<(), lockward_client::Error>(())
/// ```
#[derive(Clone, Debug)]
pub enum Address {
    /// One server that is not a node of a cluster.
    Server(ConnectionInfo),
    /// The primary that Sentinels know by a name.
    Sentinels {
        /// The Sentinels, at least one Sentinel.
        sentinels: Vec<ConnectionInfo>,
        /// The name of the primary.
        name: String,
        /// How to connect to the primary: user, password, database, TLS. The client ignores the host and the port.
        server: Box<ConnectionInfo>,
    },
    /// A cluster. The elements are some of its nodes, at least one node.
    Cluster(Vec<ConnectionInfo>),
}

impl Address {
    /// The servers or Sentinels that the address names.
    pub(crate) fn servers(&self) -> &[ConnectionInfo] {
        match self {
            Self::Server(server) => std::slice::from_ref(server),
            Self::Sentinels { sentinels: servers, .. } | Self::Cluster(servers) => servers,
        }
    }

    /// Returns the address with these certificates instead of the system's certificates: the certificate of the CA, and
    /// the client's own certificate.
    ///
    /// # Errors
    /// [`Error::Invalid`] when a certificate or the key is missing or not valid, or when the connections do not use TLS.
    #[cfg(feature = "tls")]
    pub fn certificates(mut self, certificates: &redis::TlsCertificates) -> Result<Self, Error> {
        use rustls::pki_types::{CertificateDer, pem::PemObject};
        if self.servers().iter().any(|info| !matches!(info.addr(), ConnectionAddr::TcpTls { .. })) {
            return Err(Error::invalid("certificates need a URL that begins with rediss"));
        }
        let invalid = |why: &str| Error::Invalid(format!("the certificates are not valid: {why}"));
        // The redis crate accepts a text without a certificate. With such a text no connection would succeed.
        let client = certificates.client_tls.as_ref().map(|client| &client.client_cert);
        for (whose, pem) in [("CA", certificates.root_cert.as_ref()), ("client", client)] {
            if pem.is_some_and(|pem| CertificateDer::pem_slice_iter(pem).next().is_none()) {
                return Err(invalid(&format!("no certificate of the {whose} in PEM format")));
            }
        }
        let (servers, primary) = match &mut self {
            Self::Server(server) => (std::slice::from_mut(server), None),
            Self::Sentinels { sentinels, server, .. } => (&mut sentinels[..], Some(&mut **server)),
            Self::Cluster(nodes) => (&mut nodes[..], None),
        };
        for info in servers.iter_mut().chain(primary) {
            let client = redis::Client::build_with_tls(info.clone(), certificates.clone());
            *info = client.map_err(|error| invalid(&reason(&error)))?.get_connection_info().clone();
        }
        Ok(self)
    }
}

impl std::str::FromStr for Address {
    type Err = Error;

    fn from_str(url: &str) -> Result<Self, Error> {
        let (scheme, rest) = url.split_once("://").unwrap_or_default();
        let Some((plain, kind @ ("sentinel" | "cluster"))) = scheme.split_once('+') else {
            return Ok(Self::Server(parse_url(url)?));
        };
        let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
        // If the URL has a user or a password, `user` ends with `@`. If the URL has none, `user` is empty.
        let (user, hosts) = hosts.split_at(hosts.rfind('@').map_or(0, |at| at + 1));
        if kind == "cluster" {
            let nodes = hosts.split(',').map(|host| parse_url(&format!("{plain}://{user}{host}/{path}")));
            return Ok(Self::Cluster(nodes.collect::<Result<_, _>>()?));
        }
        let (name, db) = path.split_once('/').unwrap_or((path, ""));
        if name.is_empty() {
            return Err(Error::invalid("the URL does not name the primary that the Sentinels watch"));
        }
        let sentinels = hosts.split(',').map(|host| {
            let has_port = host.rsplit_once(':').is_some_and(|(_, port)| !port.contains(']'));
            parse_url(&format!("{plain}://{host}{}", if has_port { "" } else { ":26379" }))
        });
        Ok(Self::Sentinels {
            sentinels: sentinels.collect::<Result<_, _>>()?,
            name: name.to_owned(),
            server: Box::new(parse_url(&format!("{plain}://{user}localhost/{db}"))?),
        })
    }
}

fn parse_url(url: &str) -> Result<ConnectionInfo, Error> {
    url.into_connection_info().map_err(|error| {
        let forms = "redis://host:port/db, unix:///path, redis+sentinel://host:port,host:port/name or \
                     redis+cluster://host:port,host:port";
        Error::Invalid(format!("the URL is not valid ({}): use {forms}", reason(&error)))
    })
}

/// The text of the error, without the kind that the redis crate adds, such as `InvalidClientConfig`.
fn reason(error: &RedisError) -> String {
    error.to_string().replacen(&format!(" - {:?}", error.kind()), "", 1)
}

/// The connection settings of `like`, with another host and port. A node that does not know its own host sends an empty
/// host or `?`. Then the result has the host of `like`.
pub(crate) fn with_host_and_port(like: &ConnectionInfo, host: &str, port: u16) -> ConnectionInfo {
    let mut addr = like.addr().clone();
    if let ConnectionAddr::Tcp(to, at) | ConnectionAddr::TcpTls { host: to, port: at, .. } = &mut addr {
        *at = port;
        if !matches!(host, "" | "?") {
            host.clone_into(to);
        }
    }
    like.clone().set_addr(addr)
}
