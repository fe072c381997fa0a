//! Libraries that are preloaded into a server to replace functions of the C library.

use crate::mutex::locked;
use crate::server::Setup;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::sync::Mutex;
use std::{env, fs};

impl Setup {
    /// Preloads the library compiled from `tests/<name>.rs`. The library finds the path of `file` in the environment
    /// variable `variable`.
    #[track_caller]
    pub(crate) fn shim(self, name: &str, variable: &str, file: &Path) -> Self {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(name).with_extension("rs");
        self.preload(&compiled(&source)).environment(variable, &file.display().to_string())
    }
}

/// Compiles a library from one source file, once in a run, into the directory of the running program. Returns its
/// path.
#[track_caller]
pub fn compiled(source: &Path) -> PathBuf {
    static COMPILED: Mutex<Option<HashMap<PathBuf, PathBuf>>> = Mutex::new(None);
    let mut compiled = locked(&COMPILED);
    let compiled = compiled.get_or_insert_default();
    compiled.entry(source.to_owned()).or_insert_with(|| compile(source)).clone()
}

#[track_caller]
fn compile(source: &Path) -> PathBuf {
    let name = source.file_stem().expect("a file").display();
    let program = env::current_exe().expect("a program");
    let library = program.with_file_name(format!("lib{name}.so"));
    let fresh = program.with_file_name(format!("lib{name}-{}.so", process::id()));
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let mut command = Command::new(rustc);
    command.args(["--edition", "2024", "--crate-type", "cdylib", "-O", "-C", "panic=abort", "-o"]);
    command.arg(&fresh).arg(source);
    // An emulated server needs a library for the processor that is emulated.
    command.args(env::var("LOCKWARD_SHIM_OPTIONS").unwrap_or_default().split_whitespace());
    let done = command.status().expect("rustc runs");
    assert!(done.success(), "{} does not compile", source.display());
    fs::rename(&fresh, &library).expect("a new name");
    library
}
