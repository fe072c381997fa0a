//! `lockward run`: a command under a lock.
//!
//! The command must not run on without its lock. So this process renews the lease beside it, ends it when the lock is lost,
//! passes signals on, and takes it along when it is killed itself.

mod command;
mod signals;

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::process::{ExitCode, id};
use std::time::{Duration, Instant};

use clap::Args;
use lockward_client::{Client, Error, Guard, Settings};
use tokio::time::timeout;
use uuid::Uuid;

use crate::duration;
use crate::failure::{Failure, code_of_signal};
use crate::primaries::Place;
use crate::text;
use command::{Command, Ending};
use signals::Signals;

// Above what commands commonly exit with and below what timeout(1), env(1) and shells mean by 124 and more; these mean here
// what they mean there.
const BUSY: u8 = 120;
const LOST: u8 = 121;
const UNREACHABLE: u8 = 122;
pub(crate) const FAILED: u8 = 125;
const NOT_RUNNABLE: u8 = 126;
const NOT_FOUND: u8 = 127;

/// What is left behind when a wait is given up is given back within so long, or ends with its lease.
const LEAVE_LIMIT: Duration = Duration::from_secs(2);

/// Run a command while holding a lock
///
/// Waits for the lock, renews its lease while the command runs, and gives it back afterwards. If the lock is lost, the command
/// is ended. Signals are passed on to it. It finds LOCKWARD_KEY, LOCKWARD_OWNER and LOCKWARD_TOKEN, the fencing token, in its
/// environment.
#[derive(Args)]
#[command(after_help = "\
Exit codes: that of the command, or 128 + n if signal n ended it, and
  120  the lock is busy: --no-wait, or the wait limit is reached (see -E)
  121  the lock was lost; the command was ended, or ended without its lock
  122  no server answers
  125  lockward itself failed: wrong arguments, or the server refused
  126  the command cannot be run
  127  the command was not found")]
#[command(trailing_var_arg = true)]
pub(crate) struct Run {
    /// The lock
    key: OsString,

    /// The command and its arguments
    #[arg(required_unless_present = "line", conflicts_with = "line", value_name = "COMMAND")]
    command: Vec<OsString>,

    /// Run a command line by sh -c instead
    #[arg(short = 'c', long = "command", value_name = "LINE")]
    line: Option<OsString>,

    /// Wait so long for the lock at most, such as 500ms, 30s, 5m or 1h [default: without limit]
    #[arg(short, long, value_name = "TIME", value_parser = duration::parse, visible_alias = "timeout")]
    wait: Option<Duration>,

    /// Do not wait: give up at once if another holds the lock
    #[arg(short, long, conflicts_with = "wait", visible_aliases = ["nonblock", "nb"])]
    no_wait: bool,

    /// Exit with this code when the lock is busy
    #[arg(short = 'E', long, value_name = "CODE", default_value_t = BUSY, visible_alias = "conflict-exit-code")]
    busy_exit_code: u8,

    /// How long the lock stays held if this machine is not heard of any more
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration::parse)]
    lease: Duration,

    /// How long the command has after SIGTERM before it is killed, when the lock is lost
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = duration::parse)]
    grace: Duration,

    /// How long to try while no server answers
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration::parse)]
    patience: Duration,

    /// The owner to hold it as. Whoever names the same owner has the same lock [default: HOST:PID:RANDOM]
    #[arg(long, value_name = "NAME")]
    owner: Option<OsString>,

    /// Say on stderr how long it took to get the lock, and with which token
    #[arg(short, long)]
    verbose: bool,

    #[command(flatten)]
    place: Place,
}

impl Run {
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        self.play().map_err(|failure| if failure.code() == 1 { failure.exit(FAILED) } else { failure })
    }

    fn play(self) -> Result<ExitCode, Failure> {
        let signals = Signals::listen()?;
        // One thread: when it ends, the command does.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(self.acquire_and_run(signals))
    }

    async fn acquire_and_run(self, mut signals: Signals) -> Result<ExitCode, Failure> {
        let settings = Settings::default().patience(self.patience);
        let client = Client::new(self.place.address()?, settings).map_err(|error| self.refusal(&error))?;
        let owner = self.owner.as_ref().map_or_else(fresh_owner, |owner| owner.as_bytes().to_vec());
        let lock = client.lock(self.key.as_bytes()).lease(self.lease).owner(&owner);
        let lock = match self.wait {
            _ if self.no_wait => lock.wait(Duration::ZERO),
            Some(limit) => lock.wait(limit),
            None => lock,
        };
        let begun = Instant::now();
        let acquired = tokio::select! {
            biased;
            signal = signals.next() => Err(signal),
            acquired = lock.acquire() => Ok(acquired),
        };
        let guard = match acquired {
            Ok(Ok(guard)) => guard,
            Ok(Err(error)) => {
                if matches!(error, Error::Unreachable(_)) {
                    return Err(self.refusal(&error));
                }
                let _ = timeout(LEAVE_LIMIT, client.settled()).await;
                return Err(self.refusal(&error));
            }
            Err(signal) => {
                let _ = timeout(LEAVE_LIMIT, client.settled()).await;
                return Ok(code_of_signal(signal.number).into());
            }
        };
        if self.verbose {
            let waited = duration::show(begun.elapsed());
            self.say(&format!("{} is held after {waited}, with token {}", self.name(), guard.token()));
        }
        self.run_under(guard, &mut signals).await
    }

    async fn run_under(&self, guard: Guard, signals: &mut Signals) -> Result<ExitCode, Failure> {
        let words = match &self.line {
            Some(line) => vec!["sh".into(), "-c".into(), line.clone()],
            None => self.command.clone(),
        };
        let environment = [("LOCKWARD_KEY", guard.key()), ("LOCKWARD_OWNER", guard.owner())]
            .map(|(name, value)| (name, value.to_vec()));
        let token = ("LOCKWARD_TOKEN", guard.token().to_string().into_bytes());
        let ending = match Command::start(&words, environment.into_iter().chain([token])) {
            Ok(command) => command.run(guard.lost(), self.grace, signals).await,
            Err(error) => {
                // Given back with the first failure in mind.
                let _ = guard.release().await;
                let is_there = error.kind() != std::io::ErrorKind::NotFound;
                let code = if is_there { NOT_RUNNABLE } else { NOT_FOUND };
                let word = words.first().map(|word| text::show(word.as_bytes())).unwrap_or_default();
                return Err(Failure::new(format!("cannot run {word}: {error}")).exit(code));
            }
        };
        let code = match ending {
            Ending::Exited(code) => code,
            Ending::Lost(loss) => {
                // The server may not know yet that the lease is over.
                let _ = timeout(LEAVE_LIMIT, guard.release()).await;
                let name = self.name();
                return Err(
                    Failure::new(format!("{name} was lost: {loss}; the command was ended")).exit(LOST)
                );
            }
        };
        match guard.release().await {
            Ok(()) => {}
            Err(Error::Lost(loss)) => {
                let name = self.name();
                return Err(
                    Failure::new(format!("{name} was lost before the command ended: {loss}")).exit(LOST)
                );
            }
            Err(error) => {
                self.say(&format!("{} was not given back, and ends with its lease: {error}", self.name()));
            }
        }
        Ok(code.into())
    }

    fn name(&self) -> String {
        text::show(self.key.as_bytes())
    }

    fn say(&self, line: &str) {
        eprintln!("lockward: {line}");
    }

    /// Why the lock was not acquired.
    fn refusal(&self, error: &Error) -> Failure {
        let name = self.name();
        if matches!(error, Error::Busy) {
            return Failure::new(format!("{name} is busy")).exit(self.busy_exit_code);
        }
        let code = if matches!(error, Error::Unreachable(_)) { UNREACHABLE } else { FAILED };
        Failure::new(format!("cannot acquire {name}: {error}")).exit(code)
    }
}

/// An owner that nobody else is, and that tells an operator where to look.
fn fresh_owner() -> Vec<u8> {
    let host = nix::unistd::gethostname().unwrap_or_else(|_| "?".into());
    let random = Uuid::new_v4().simple().to_string();
    let random = random.get(..8).unwrap_or_default();
    format!("{}:{}:{random}", host.to_string_lossy(), id()).into_bytes()
}
