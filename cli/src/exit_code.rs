//! The exit codes of the subcommands.

/// A subcommand other than `run` failed.
pub(crate) const ERROR: u8 = 2;
/// The output is not complete, because some primaries did not answer.
pub(crate) const PARTIAL: u8 = 3;

// `run` reserves the following codes. All other exit codes of `run` come from the command. Few commands use the codes
// 120 to 122. Codes from 125 on have the same meaning as in timeout(1), env(1) and shells.

/// `run`: the lock is busy.
pub(crate) const BUSY: u8 = 120;
/// `run`: the lock was lost while the command ran.
pub(crate) const LOST: u8 = 121;
/// `run`: no server answers.
pub(crate) const UNREACHABLE: u8 = 122;
/// `run` itself failed.
pub(crate) const RUN_FAILED: u8 = 125;
/// `run`: the command cannot be executed.
pub(crate) const NOT_EXECUTABLE: u8 = 126;
/// `run`: the command was not found.
pub(crate) const NOT_FOUND: u8 = 127;

/// The exit code after a signal, as in shells: 128 plus the number of the signal.
pub(crate) fn after_signal(number: i32) -> u8 {
    u8::try_from(number).map_or(u8::MAX, |number| number.saturating_add(128))
}
