//! The peer programs. Each is written in the language of its libraries, and built when it is needed.

use lockward_tests::{ProcessGroup, repository};
use std::env;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// How long a build may take, with its downloads.
const BUILD: Duration = Duration::from_secs(600);

/// A program that runs jobs with one or more peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Program {
    /// The program benches/peers/rust, which sends plain commands.
    Commands,
    /// The program benches/peers/rust, which uses a library.
    Rust,
    Java,
    Go,
    Python,
    Node,
}

impl Program {
    /// The language of the libraries; a dash if there are none.
    pub const fn language(self) -> &'static str {
        match self {
            Self::Commands => "-",
            Self::Rust => "Rust",
            Self::Java => "Java",
            Self::Go => "Go",
            Self::Python => "Python",
            Self::Node => "Node.js",
        }
    }

    /// Builds the program. Returns its file and first arguments.
    ///
    /// # Errors
    /// If the build fails: the end of the tool's output.
    pub fn build(self) -> Result<Vec<String>, String> {
        let folder = repository().join("benches/peers");
        let built = repository().join("target/peers");
        let path = |path: &str| built.join(path).display().to_string();
        match self {
            Self::Commands | Self::Rust => {
                let this = env::current_exe().expect("this program");
                Ok(vec![this.with_file_name("peer-lockward").display().to_string()])
            }
            Self::Java => {
                need("mvn", &["maven", "default-jdk-headless"])?;
                let pom = folder.join("java/pom.xml").display().to_string();
                let goal = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:build-classpath";
                let libraries = path("java/classpath");
                let output = format!("-Dmdep.outputFile={libraries}");
                run("java", &["mvn", "--quiet", "--batch-mode", "--file", &pom, "compile", goal, &output])?;
                let libraries = fs::read_to_string(libraries).map_err(|error| error.to_string())?;
                let classpath = format!("{}:{libraries}", path("java/classes"));
                Ok(["java", "-cp", &classpath, "lockward.peers.Main"].map(str::to_owned).into())
            }
            Self::Go => {
                need("go", &["golang-go"])?;
                let module = folder.join("go").display().to_string();
                run("go", &["go", "build", "-C", &module, "-o", &path("go/peers"), "."])?;
                Ok(vec![path("go/peers")])
            }
            Self::Python => {
                need("python3", &["python3", "python3-venv"])?;
                let requirements = folder.join("python/requirements.txt").display().to_string();
                let client = repository().join("clients/python").display().to_string();
                let pip = &path("python/bin/pip");
                run("python", &["python3", "-m", "venv", &path("python")])?;
                let install =
                    [pip, "install", "--quiet", "--requirement", &requirements, "--editable", &client];
                run("python", &install)?;
                Ok(vec![path("python/bin/python"), folder.join("python/peers.py").display().to_string()])
            }
            Self::Node => {
                need("npm", &["nodejs", "npm"])?;
                let script = folder.join("node/build").display().to_string();
                run("node", &[&script])?;
                Ok(vec!["node".to_owned(), path("node/peers.js")])
            }
        }
    }
}

/// Installs these Debian packages with scripts/install-deps, unless the tool is installed already.
fn need(tool: &str, packages: &[&str]) -> Result<(), String> {
    let path = env::var_os("PATH").unwrap_or_default();
    if env::split_paths(&path).any(|folder| folder.join(tool).is_file()) {
        return Ok(());
    }
    let script = repository().join("scripts/install-deps").display().to_string();
    run(tool, &[&[script.as_str()], packages].concat())
}

/// Runs a tool to its end. Its output goes to this log in `target/peers`.
///
/// # Errors
/// If the tool fails: the end of its output.
pub(crate) fn run(log: &str, command: &[&str]) -> Result<(), String> {
    let folder = repository().join("target/peers");
    let failed = |error| format!("{} cannot be written: {error}", folder.display());
    fs::create_dir_all(&folder).map_err(failed)?;
    let log = folder.join(format!("{log}.log"));
    let file = File::create(&log).map_err(failed)?;
    let mut tool = Command::new(command[0]);
    tool.args(&command[1..]).stdin(Stdio::null()).stdout(file.try_clone().map_err(failed)?).stderr(file);
    let process = ProcessGroup::start(&mut tool);
    let mut process = process.map_err(|error| format!("{} does not run: {error}", command[0]))?;
    if wait(&mut process, BUILD)?.success() {
        return Ok(());
    }
    Err(format!("{} fails: {}", command[0], last_lines(&log)))
}

/// Waits until a process ends.
///
/// # Errors
/// If the process does not end within `limit`.
pub(crate) fn wait(process: &mut ProcessGroup, limit: Duration) -> Result<ExitStatus, String> {
    let deadline = Instant::now() + limit;
    while Instant::now() < deadline {
        if let Some(status) = process.ended() {
            return Ok(status);
        }
        thread::sleep(Duration::from_millis(10));
    }
    Err(format!("the program did not end within {} s", limit.as_secs()))
}

/// The last lines of a file, joined to one line.
pub(crate) fn last_lines(file: &Path) -> String {
    let text = String::from_utf8_lossy(&fs::read(file).unwrap_or_default()).into_owned();
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let last = lines[lines.len().saturating_sub(5)..].join(" / ");
    if last.is_empty() { "no output".to_owned() } else { last }
}
