//! Certificates made with the openssl program, and servers that require a client certificate.

use crate::process::Directory;
use crate::server::Setup;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A certificate authority, a server certificate for 127.0.0.1, and a client certificate. The files are removed when
/// this value goes out of scope.
#[derive(Debug)]
pub struct Certificates {
    dir: Directory,
}

impl Certificates {
    /// Makes the certificates.
    #[track_caller]
    pub fn new() -> Self {
        let dir = Directory::new();
        let make = |name: &str, more: &[&str]| {
            let key = format!("{name}.key");
            let certificate = format!("{name}.crt");
            let subject = format!("/CN=Lockward {name}");
            let words =
                ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];
            let output = ["-days", "2", "-keyout", &key, "-out", &certificate, "-subj", &subject];
            openssl(dir.path(), &[&words[..], &output, more].concat());
        };
        let signed = ["-CA", "ca.crt", "-CAkey", "ca.key", "-addext", "basicConstraints=critical,CA:FALSE"];
        make("ca", &[]);
        make("server", &[&signed[..], &["-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]].concat());
        make("client", &signed);
        Self { dir }
    }

    /// The paths of the authority's certificate, the client's certificate and the client's key.
    pub fn files(&self) -> [PathBuf; 3] {
        ["ca.crt", "client.crt", "client.key"].map(|file| self.dir.path().join(file))
    }
}

impl Default for Certificates {
    fn default() -> Self {
        Self::new()
    }
}

#[track_caller]
fn openssl(dir: &Path, words: &[&str]) {
    let run = Command::new("openssl").args(words).current_dir(dir).stdin(Stdio::null()).output();
    let run = run.expect("openssl runs");
    assert!(run.status.success(), "openssl {words:?}:\n{}", String::from_utf8_lossy(&run.stderr));
}

impl Setup {
    /// Adds a TLS port. On this port the server requires a client certificate.
    pub fn tls(self, certificates: &Certificates, port: u16) -> Self {
        let file = |name: &str| certificates.dir.path().join(name).display().to_string();
        self.config(&format!("tls-port {port}"))
            .config(&format!("tls-cert-file {}", file("server.crt")))
            .config(&format!("tls-key-file {}", file("server.key")))
            .config(&format!("tls-ca-cert-file {}", file("ca.crt")))
            .config("tls-auth-clients yes")
    }
}
