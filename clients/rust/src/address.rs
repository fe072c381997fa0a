//! Addresses of servers, and their URLs.

use crate::error::Error;
use redis::{ConnectionAddr, ConnectionInfo, ErrorKind, IntoConnectionInfo, RedisError};

/// Where the servers are, and how to connect to them.
///
/// | URL | means |
/// | --- | --- |
/// | `redis://[user:password@]host[:port][/db]`, `unix:///path` | One server. |
/// | `redis+sentinel://[user:password@]host[:port],host[:port],.../name[/db]` | The primary that Sentinels know by `name`. User, password and database are for the servers. If the Sentinels need a password, too, use [`Address::sentinels`]. |
/// | `redis+cluster://[user:password@]host[:port],host[:port],...` | A cluster. The hosts are some of its nodes. |
///
/// With `rediss` instead of `redis` all connections use TLS. That needs the crate's feature `tls`.
///
/// ```
/// # use lockward_client::Address;
/// let address: Address = "redis+sentinel://:secret@10.0.0.1:26379,10.0.0.2:26379,10.0.0.3:26379/locks".parse()?;
/// # Ok::<(), lockward_client::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Address(pub(crate) Deployment);

#[derive(Clone, Debug)]
pub(crate) enum Deployment {
    Server(ConnectionInfo),
    /// `server` says how to connect to the primary. The Sentinels tell its host and port.
    Sentinels {
        sentinels: Vec<ConnectionInfo>,
        name: String,
        server: ConnectionInfo,
    },
    /// Some of the nodes, at least one.
    Cluster(Vec<ConnectionInfo>),
}

impl Address {
    /// One server.
    pub fn server(server: ConnectionInfo) -> Self {
        Self(Deployment::Server(server))
    }

    /// The primary that `sentinels` know by `name`. `server` says how to connect to it: user, password, database, TLS.
    /// The host and port of `server` are ignored.
    pub fn sentinels(sentinels: Vec<ConnectionInfo>, name: &str, server: ConnectionInfo) -> Self {
        Self(Deployment::Sentinels { sentinels, name: name.to_owned(), server })
    }

    /// A cluster. `nodes` are some of its nodes, at least one.
    pub fn cluster(nodes: Vec<ConnectionInfo>) -> Self {
        Self(Deployment::Cluster(nodes))
    }
}

impl std::str::FromStr for Address {
    type Err = Error;

    fn from_str(url: &str) -> Result<Self, Error> {
        let (scheme, rest) = url.split_once("://").unwrap_or_default();
        match scheme.split_once('+') {
            Some((plain @ ("redis" | "rediss" | "valkey" | "valkeys"), kind @ ("sentinel" | "cluster"))) => {
                let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
                let (user, hosts) = hosts.rsplit_once('@').map_or(("", hosts), |(user, hosts)| (user, hosts));
                if kind == "cluster" {
                    let nodes = parse_hosts(plain, user, hosts, path, 6379)?;
                    return Ok(Self::cluster(nodes));
                }
                let (name, db) = path.split_once('/').unwrap_or((path, ""));
                if name.is_empty() {
                    return Err(invalid_url("the URL does not name the primary that the Sentinels watch"));
                }
                let sentinels = parse_hosts(plain, "", hosts, "", 26379)?;
                let server =
                    format!("{plain}://{user}{}localhost/{db}", if user.is_empty() { "" } else { "@" });
                Ok(Self::sentinels(sentinels, name, parse_url(&server)?))
            }
            _ => Ok(Self::server(parse_url(url)?)),
        }
    }
}

fn parse_hosts(
    scheme: &str,
    user: &str,
    hosts: &str,
    path: &str,
    port: u16,
) -> Result<Vec<ConnectionInfo>, Error> {
    let at = if user.is_empty() { "" } else { "@" };
    let nodes = hosts.split(',').map(|host| {
        let has_port = host.rsplit_once(':').is_some_and(|(_, port)| !port.contains(']'));
        let port = if has_port { String::new() } else { format!(":{port}") };
        parse_url(&format!("{scheme}://{user}{at}{host}{port}/{path}"))
    });
    nodes.collect()
}

fn parse_url(url: &str) -> Result<ConnectionInfo, Error> {
    url.into_connection_info().map_err(Error::Connection)
}

fn invalid_url(why: &'static str) -> Error {
    Error::Connection(RedisError::from((ErrorKind::InvalidClientConfig, why)))
}

/// The same connection settings, for another host and port.
pub(crate) fn with_host_and_port(like: &ConnectionInfo, host: &str, port: u16) -> ConnectionInfo {
    let host = host.to_owned();
    let addr = match like.addr() {
        ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
            ConnectionAddr::TcpTls { host, port, insecure: *insecure, tls_params: tls_params.clone() }
        }
        ConnectionAddr::Tcp(..) | ConnectionAddr::Unix(_) | _ => ConnectionAddr::Tcp(host, port),
    };
    like.clone().set_addr(addr)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn describe(info: &ConnectionInfo) -> String {
        let redis = info.redis_settings();
        format!("{}@{}/{}", redis.password().unwrap_or("-"), info.addr(), redis.db())
    }

    fn deployment(url: &str) -> Deployment {
        url.parse::<Address>().unwrap().0
    }

    #[test]
    fn a_url_of_one_server() {
        for url in ["redis://:secret@host:7000/3", "redis://host", "unix:///tmp/socket"] {
            let Deployment::Server(server) = deployment(url) else { panic!("{url}") };
            assert_eq!(server.addr(), url.into_connection_info().unwrap().addr());
        }
    }

    #[test]
    fn a_url_of_sentinels() {
        let Deployment::Sentinels { sentinels, name, server } =
            deployment("redis+sentinel://me:secret@a,b:7000,[::1],[::1]:7001/locks/3")
        else {
            panic!("sentinels")
        };
        let sentinels: Vec<String> = sentinels.iter().map(describe).collect();
        assert_eq!(sentinels, ["-@a:26379/0", "-@b:7000/0", "-@::1:26379/0", "-@::1:7001/0"]);
        assert_eq!((&*name, server.redis_settings().username()), ("locks", Some("me")));
        assert_eq!(describe(&with_host_and_port(&server, "c", 6380)), "secret@c:6380/3");
    }

    #[test]
    fn a_url_of_a_cluster() {
        let Deployment::Cluster(nodes) = deployment("redis+cluster://:secret@a:7000,b") else {
            panic!("a cluster")
        };
        assert_eq!(nodes.iter().map(describe).collect::<Vec<_>>(), ["secret@a:7000/0", "secret@b:6379/0"]);
    }

    #[test]
    fn invalid_urls_are_refused() {
        for url in [
            "",
            "host:6379",
            "http://host",
            "redis+sentinel://a,b",
            "redis+other://a",
            "redis+cluster://",
            "redis://h/x",
        ] {
            assert!(matches!(url.parse::<Address>(), Err(Error::Connection(_))), "{url:?}");
        }
    }
}
