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
        let error = url.parse::<Address>().expect_err("an error");
        let text = error.to_string();
        let names_the_forms = text.contains("redis+sentinel://host:port,host:port/name");
        let is_clear =
            names_the_forms || text == "the URL does not name the primary that the Sentinels watch";
        assert!(matches!(error, Error::Invalid(_)) && is_clear, "{url:?}: {text}");
        assert!(!text.contains("InvalidClientConfig"), "{text}");
    }
}

#[cfg(feature = "tls")]
#[test]
fn certificates_that_are_missing_or_that_the_connection_does_not_use_are_refused() {
    use lockward_client::redis::{ClientTlsConfig, TlsCertificates};
    let made = lockward_tests::Certificates::new();
    let client_key = std::fs::read(&made.files()[2]).expect("a key");
    let junk = || Some(b"junk".to_vec());
    let client = || Some(ClientTlsConfig { client_cert: b"junk".to_vec(), client_key: client_key.clone() });
    for (url, root_cert, client_tls, wanted) in [
        (
            "rediss://host",
            junk(),
            None,
            "the certificates are not valid: no certificate of the CA in PEM format",
        ),
        (
            "rediss+cluster://host",
            Some(Vec::new()),
            None,
            "the certificates are not valid: no certificate of the CA in PEM format",
        ),
        (
            "rediss://host",
            None,
            client(),
            "the certificates are not valid: no certificate of the client in PEM format",
        ),
        ("redis://host", None, None, "certificates need a URL that begins with rediss"),
    ] {
        let address: Address = url.parse().expect("an address");
        let refused = address.certificates(&TlsCertificates { client_tls, root_cert });
        let error = refused.expect_err("an error");
        assert!(matches!(&error, Error::Invalid(why) if why == wanted), "{url}: {error}");
    }
}
