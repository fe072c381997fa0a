//! Addresses and their URLs.

use lockward_client::redis::ConnectionInfo;
use lockward_client::{Address, Error};

fn describe(info: &ConnectionInfo) -> String {
    let redis = info.redis_settings();
    format!("{}@{}/{}", redis.password().unwrap_or("-"), info.addr(), redis.db())
}

#[test]
fn a_url_of_one_server() {
    for url in ["redis://:secret@host:7000/3", "redis://host", "unix:///tmp/socket"] {
        let Ok(Address::Server(server)) = url.parse() else { panic!("{url}") };
        assert_eq!(describe(&server), describe(&url.parse().expect("an address")));
    }
}

#[test]
fn a_url_of_sentinels() {
    let url = "redis+sentinel://me:secret@a,b:7000,[::1],[::1]:7001/locks/3";
    let Ok(Address::Sentinels { sentinels, name, server }) = url.parse() else { panic!("sentinels") };
    let sentinels: Vec<String> = sentinels.iter().map(describe).collect();
    assert_eq!(sentinels, ["-@a:26379/0", "-@b:7000/0", "-@::1:26379/0", "-@::1:7001/0"]);
    assert_eq!((&*name, server.redis_settings().username()), ("locks", Some("me")));
    assert!(describe(&server).starts_with("secret@") && describe(&server).ends_with("/3"));
}

#[test]
fn a_url_of_a_cluster() {
    let Ok(Address::Cluster(nodes)) = "redis+cluster://:secret@a:7000,b".parse() else { panic!("a cluster") };
    assert_eq!(nodes.iter().map(describe).collect::<Vec<_>>(), ["secret@a:7000/0", "secret@b:6379/0"]);
}

#[test]
fn invalid_urls_are_refused() {
    let urls = [
        "",
        "host:6379",
        "http://host",
        "redis+sentinel://a,b",
        "redis+other://a",
        "redis+cluster://",
        "redis://h/x",
    ];
    for url in urls {
        assert!(matches!(url.parse::<Address>(), Err(Error::Invalid(_))), "{url:?}");
    }
}
