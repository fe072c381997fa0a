//! Where the servers are.

use crate::error::Error;
use redis::{ConnectionAddr, ConnectionInfo, ErrorKind, IntoConnectionInfo, RedisError};

/// Where the servers are, and how to get in.
///
/// | URL | means |
/// | --- | --- |
/// | `redis://[user:password@]host[:port][/db]`, `unix:///path` | One server. |
/// | `redis+sentinel://[user:password@]host[:port],host[:port],.../name[/db]` | The primary that Sentinels know by `name`. User, password and database are the servers'; for Sentinels that want some, see [`Address::sentinels`]. |
/// | `redis+cluster://[user:password@]host[:port],host[:port],...` | A cluster, of which these are some nodes. |
///
/// With `rediss` instead of `redis` all of them are reached by TLS; that takes the crate's feature `tls`.
///
/// ```
/// # use lockward_client::Address;
/// let address: Address = "redis+sentinel://:secret@10.0.0.1:26379,10.0.0.2:26379,10.0.0.3:26379/locks".parse()?;
/// # Ok::<(), lockward_client::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Address(pub(crate) Place);

#[derive(Clone, Debug)]
pub(crate) enum Place {
    Server(ConnectionInfo),
    /// The servers are reached as `server` says, at the address that the Sentinels tell.
    Sentinels {
        sentinels: Vec<ConnectionInfo>,
        name: String,
        server: ConnectionInfo,
    },
    /// At least one.
    Cluster(Vec<ConnectionInfo>),
}

impl Address {
    /// One server.
    pub fn server(server: ConnectionInfo) -> Self {
        Self(Place::Server(server))
    }

    /// The primary that `sentinels` know by `name`. `server` says how to get into it: user, password, database, TLS;
    /// its host and port do not matter.
    pub fn sentinels(sentinels: Vec<ConnectionInfo>, name: &str, server: ConnectionInfo) -> Self {
        Self(Place::Sentinels { sentinels, name: name.to_owned(), server })
    }

    /// A cluster, of which `nodes` are some.
    pub fn cluster(nodes: Vec<ConnectionInfo>) -> Self {
        Self(Place::Cluster(nodes))
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
                    let nodes = each(plain, user, hosts, path, 6379)?;
                    return Ok(Self::cluster(nodes));
                }
                let (name, db) = path.split_once('/').unwrap_or((path, ""));
                if name.is_empty() {
                    return Err(refused("the URL does not say by what name Sentinels know the primary"));
                }
                let sentinels = each(plain, "", hosts, "", 26379)?;
                let server =
                    format!("{plain}://{user}{}localhost/{db}", if user.is_empty() { "" } else { "@" });
                Ok(Self::sentinels(sentinels, name, parsed(&server)?))
            }
            _ => Ok(Self::server(parsed(url)?)),
        }
    }
}

fn each(scheme: &str, user: &str, hosts: &str, path: &str, port: u16) -> Result<Vec<ConnectionInfo>, Error> {
    let at = if user.is_empty() { "" } else { "@" };
    let plain = hosts.split(',').map(|host| {
        let has_port = host.rsplit_once(':').is_some_and(|(_, port)| !port.contains(']'));
        let port = if has_port { String::new() } else { format!(":{port}") };
        parsed(&format!("{scheme}://{user}{at}{host}{port}/{path}"))
    });
    plain.collect()
}

fn parsed(url: &str) -> Result<ConnectionInfo, Error> {
    url.into_connection_info().map_err(Error::Connection)
}

fn refused(why: &'static str) -> Error {
    Error::Connection(RedisError::from((ErrorKind::InvalidClientConfig, why)))
}

/// As `like`, but at another host and port.
pub(crate) fn elsewhere(like: &ConnectionInfo, host: &str, port: u16) -> ConnectionInfo {
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

    fn at(info: &ConnectionInfo) -> String {
        let redis = info.redis_settings();
        format!("{}@{}/{}", redis.password().unwrap_or("-"), info.addr(), redis.db())
    }

    fn place(url: &str) -> Place {
        url.parse::<Address>().unwrap().0
    }

    #[test]
    fn one_server() {
        for url in ["redis://:secret@host:7000/3", "redis://host", "unix:///tmp/socket"] {
            let Place::Server(server) = place(url) else { panic!("{url}") };
            assert_eq!(server.addr(), url.into_connection_info().unwrap().addr());
        }
    }

    #[test]
    fn sentinels() {
        let Place::Sentinels { sentinels, name, server } =
            place("redis+sentinel://me:secret@a,b:7000,[::1],[::1]:7001/locks/3")
        else {
            panic!("sentinels")
        };
        let sentinels: Vec<String> = sentinels.iter().map(at).collect();
        assert_eq!(sentinels, ["-@a:26379/0", "-@b:7000/0", "-@::1:26379/0", "-@::1:7001/0"]);
        assert_eq!((&*name, server.redis_settings().username()), ("locks", Some("me")));
        assert_eq!(at(&elsewhere(&server, "c", 6380)), "secret@c:6380/3");
    }

    #[test]
    fn a_cluster() {
        let Place::Cluster(nodes) = place("redis+cluster://:secret@a:7000,b") else { panic!("a cluster") };
        assert_eq!(nodes.iter().map(at).collect::<Vec<_>>(), ["secret@a:7000/0", "secret@b:6379/0"]);
    }

    #[test]
    fn what_is_no_address() {
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
