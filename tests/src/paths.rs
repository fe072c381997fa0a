//! Files of the repository, and programs.

use std::env;
use std::path::{Path, PathBuf};

/// The root of the repository.
pub fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the root of the repository")
}

/// The path of the server program: the value of `LOCKWARD_SERVER`, or `redis-server`.
pub fn server_program() -> String {
    env::var("LOCKWARD_SERVER").unwrap_or_else(|_| "redis-server".into())
}

/// A file that `make` has built: `target/<file>`, or the file that the environment variable names.
pub fn built_file(variable: &str, file: &str) -> PathBuf {
    env::var_os(variable).map_or_else(|| repository().join("target").join(file), PathBuf::from)
}
