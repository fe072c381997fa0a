//! `lockward run`: runs a command while holding a lock.
//!
//! The command must not continue without its lock. So lockward renews the lease, passes signals on, and ends the
//! command when the lock is lost. On Linux, the kernel also kills the command when lockward dies.

mod command;
mod signals;

use std::ffi::{OsStr, OsString};
use std::iter;
use std::os::unix::ffi::OsStrExt;
use std::process::{ExitCode, id};
use std::time::Duration;

use clap::Args;
use lockward_client::{Client, Error, Guard, Lock, Settings};
use signal_hook::consts::SIGINT;
use signal_hook::low_level::emulate_default_handler;
use tokio::time::{sleep, timeout};
use uuid::Uuid;

use crate::duration;
use crate::exit_code;
use crate::failure::Failure;
use crate::output;
use crate::primaries::ServerUrl;
use command::{Command, has_terminal};
use signals::Signals;

/// How long to wait for a release after a failure, a signal or a loss. If the release fails, the tenure ends with its
/// lease.
const RELEASE_LIMIT: Duration = Duration::from_secs(2);

/// Run a command while holding a lock
///
/// lockward waits for the lock, renews its lease while the command runs, and releases the lock when the command ends.
/// If the lock is lost, lockward ends the command. lockward passes signals on to the command. The command has
/// LOCKWARD_KEY, LOCKWARD_OWNER and LOCKWARD_TOKEN (the fencing token) in its environment.
#[derive(Args)]
#[command(after_help = "\
Exit codes: the exit code of the command, 128 + n if signal n ended the command, and
  120  the lock is busy, with --no-wait or after the wait limit (see -E)
  121  the lock was lost while the command ran
  122  no server answers
  125  the arguments are wrong, or the server replied with an error
  126  the command cannot be executed
  127  the command was not found")]
#[command(
    trailing_var_arg = true,
    override_usage = "lockward run [OPTIONS] <KEY> [--] <COMMAND> [ARGUMENT]...\n       lockward run [OPTIONS] <KEY> -c <LINE>"
)]
pub(crate) struct Run {
    /// The lock
    key: OsString,

    /// The command and its arguments
    #[arg(required_unless_present = "line", conflicts_with = "line", value_name = "COMMAND")]
    command: Vec<OsString>,

    /// Hold this lock too: the command runs only while all its locks are held. May be repeated
    #[arg(long, value_name = "OTHER")]
    also: Vec<OsString>,

    /// Run a command line with sh -c instead
    #[arg(short = 'c', long = "command", value_name = "LINE")]
    line: Option<OsString>,

    /// Wait at most this long for the lock: 500ms, 30s, 5m or 1h [default: no limit]
    #[arg(short, long, value_name = "TIME", value_parser = duration::parse, visible_alias = "timeout")]
    wait: Option<Duration>,

    /// Give up at once if the lock is busy
    #[arg(short, long, conflicts_with = "wait", visible_aliases = ["nonblock", "nb"])]
    no_wait: bool,

    /// Exit with this code when the lock is busy. With 0, lockward prints no message
    #[arg(short = 'E', long, value_name = "CODE", default_value_t = exit_code::BUSY, visible_alias = "conflict-exit-code")]
    busy_exit_code: u8,

    /// Hold the lock together with other --shared runs, as a reader
    #[arg(short, long, conflicts_with = "slots")]
    shared: bool,

    /// Hold the lock together with other runs, as a semaphore: the sum of all weights is at most N
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    slots: Option<u32>,

    /// How many slots to take [default: 1]
    #[arg(long, value_name = "N", requires = "slots", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    weight: Option<u32>,

    /// How long the lock stays held after this machine crashes or loses its network
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration::parse)]
    lease: Duration,

    /// The time between SIGTERM and SIGKILL when the lock is lost
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = duration::parse)]
    grace: Duration,

    /// If no server answers, give up after this time
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = duration::parse_positive)]
    patience: Duration,

    /// The owner. Two runs with the same owner hold the lock at the same time [default: HOST:PID:RANDOM]
    #[arg(long, value_name = "NAME")]
    owner: Option<OsString>,

    #[command(flatten)]
    server: ServerUrl,
}

impl Run {
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        let mut signals = Signals::listen()?;
        // The runtime has only one thread, because the kernel kills the command when the thread that started it ends.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let code = runtime.block_on(self.acquire_and_run(&mut signals))?;
        // After Ctrl-C a shell script goes on, unless SIGINT has ended the program that the script waits for.
        if code == exit_code::after_signal(SIGINT).into() && has_terminal() {
            emulate_default_handler(SIGINT)?;
        }
        Ok(code)
    }

    async fn acquire_and_run(self, signals: &mut Signals) -> Result<ExitCode, Failure> {
        let settings = Settings::default().patience(self.patience);
        let client =
            Client::new(self.server.address()?, settings).map_err(|error| self.not_acquired(&error))?;
        let owner = self.owner.as_ref().map_or_else(unique_owner, |owner| owner.as_bytes().to_vec());
        let keys = iter::once(&self.key).chain(&self.also).map(|key| key.as_bytes());
        let lock = client.locks(keys).lease(self.lease).owner(&owner);
        let lock = if self.shared { lock.shared() } else { lock };
        let lock = self.slots.into_iter().fold(lock, Lock::slots);
        let lock = self.weight.into_iter().fold(lock, Lock::weight);
        let lock = match self.wait {
            _ if self.no_wait => lock.wait(Duration::ZERO),
            Some(limit) => lock.wait(limit),
            None => lock,
        };
        let outcome = tokio::select! {
            biased;
            signal = signals.next() => Ok(exit_code::after_signal(signal.number).into()),
            acquired = lock.acquire() => match acquired {
                Ok(guard) => return self.run_command(guard, signals).await,
                Err(error) => Err(self.not_acquired(&error)),
            },
        };
        if !matches!(outcome, Err(Failure { code: Some(exit_code::UNREACHABLE), .. })) {
            let _ = timeout(RELEASE_LIMIT, client.close()).await;
        }
        outcome
    }

    async fn run_command(&self, guard: Guard, signals: &mut Signals) -> Result<ExitCode, Failure> {
        let words = match &self.line {
            Some(line) => vec!["sh".into(), "-c".into(), line.clone()],
            None => self.command.clone(),
        };
        let token = self.token(&guard).to_string();
        let environment = [
            ("LOCKWARD_KEY", self.key.as_os_str()),
            ("LOCKWARD_OWNER", OsStr::from_bytes(guard.owner())),
            ("LOCKWARD_TOKEN", token.as_ref()),
        ];
        let ended = match Command::start(&words, environment) {
            Ok(command) => command.run(guard.lost(), self.grace, signals).await,
            Err(error) => {
                // The user gets the error of the failed start, so lockward does not report an error of the release.
                let _ = guard.release().await;
                let found = error.kind() != std::io::ErrorKind::NotFound;
                let code = if found { exit_code::NOT_EXECUTABLE } else { exit_code::NOT_FOUND };
                let word = words.first().map(|word| word.to_string_lossy()).unwrap_or_default();
                return Err(Failure::new(format!("cannot run {word}: {error}")).with_code(code));
            }
        };
        let lost = |error: &Error, command: &str| {
            Err(Failure::new(format!("{error}; {command}")).with_code(exit_code::LOST))
        };
        let Some(code) = ended else {
            // A renewal of a lost lock fails at once, and the error names the lock.
            let renewed = guard.renew().await;
            // Release all locks of this run: at the server, the lease of the lost lock may not be over yet, and the other
            // locks may still be held.
            let _ = timeout(RELEASE_LIMIT, guard.release()).await;
            let error = renewed.err().unwrap_or_else(|| Error::Invalid("the lock was lost".into()));
            return lost(&error, "lockward ended the command");
        };
        // A signal ends a release that gets no reply.
        let given_up = async {
            signals.next().await;
            sleep(RELEASE_LIMIT).await;
        };
        let cause = tokio::select! {
            released = guard.release() => match released {
                Ok(()) => return Ok(code.into()),
                Err(error) if matches!(error, Error::Lost { .. }) => {
                    return lost(&error, "the command ran to its end");
                }
                Err(error) => error.to_string(),
            },
            () = given_up => "no server answers".to_owned(),
        };
        output::complain(&format!(
            "the lock could not be released and stays held until its lease ends: {cause}"
        ));
        Ok(code.into())
    }

    /// The fencing token of the lock `self.key`.
    fn token(&self, guard: &Guard) -> u64 {
        let mut tokens = guard.tokens();
        tokens.find(|(key, _)| *key == self.key.as_bytes()).map_or(0, |(_, token)| token)
    }

    fn not_acquired(&self, error: &Error) -> Failure {
        let failure = Failure::new(error.to_string());
        if matches!(error, Error::Busy { .. }) {
            failure.with_code(self.busy_exit_code)
        } else if matches!(error, Error::Unreachable { .. }) {
            failure.with_code(exit_code::UNREACHABLE)
        } else {
            failure
        }
    }
}

/// A unique owner. The name contains the host and the process id, for the operator.
fn unique_owner() -> Vec<u8> {
    let host = nix::unistd::gethostname().unwrap_or_else(|_| "?".into());
    let random = Uuid::new_v4().simple().to_string();
    let random = random.get(..8).unwrap_or_default();
    format!("{}:{}:{random}", host.to_string_lossy(), id()).into_bytes()
}
