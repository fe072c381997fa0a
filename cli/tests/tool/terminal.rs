//! A terminal in tmux.

use crate::{send_signal, soon_in};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

/// A terminal that runs one program, and shows its exit code when the program ends. Dropping this value ends the
/// terminal and the program.
pub(crate) struct Terminal {
    name: String,
}

impl Terminal {
    /// Starts a terminal of this size. If tmux is not installed, prints a message and returns `None`.
    pub(crate) fn start(columns: u16, rows: u16, program: &str) -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("lockward-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let terminal = Self { name };
        // The terminal stays open after the program ends, so that the test can read it.
        let script = format!("{program}; echo ended with $?; exec cat");
        let (columns, rows) = (columns.to_string(), rows.to_string());
        let arguments =
            ["-f", "/dev/null", "new-session", "-d", "-x", &columns, "-y", &rows, "sh", "-c", &script];
        let started = terminal.tmux(&arguments);
        if started.is_err() {
            eprintln!("SKIPPED: tmux is not installed, so no test ran in a terminal");
            return None;
        }
        let started = started.unwrap();
        assert!(started.status.success(), "{started:?}");
        Some(terminal)
    }

    fn tmux(&self, arguments: &[&str]) -> std::io::Result<Output> {
        let mut tmux = Command::new("tmux");
        tmux.env("LC_ALL", "C.UTF-8").env_remove("TMUX");
        tmux.args(["-u", "-L", &self.name]).args(arguments).output()
    }

    /// The text on the screen.
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.tmux(&["capture-pane", "-p"]).unwrap().stdout).unwrap()
    }

    /// Waits until the screen shows a text.
    #[track_caller]
    pub(crate) fn see(&self, wanted: &str) {
        soon_in(wanted, || self.text(), |text| text.contains(wanted).then_some(()));
    }

    pub(crate) fn press(&self, key: &str) {
        assert!(self.tmux(&["send-keys", key]).unwrap().status.success());
    }

    pub(crate) fn resize(&self, columns: u16, rows: u16) {
        let (columns, rows) = (columns.to_string(), rows.to_string());
        assert!(self.tmux(&["resize-window", "-x", &columns, "-y", &rows]).unwrap().status.success());
    }

    /// Sends a signal to the program.
    pub(crate) fn send(&self, signal: &str) {
        send_signal(signal, &self.program());
    }

    /// The process id of the program.
    pub(crate) fn program(&self) -> String {
        let shell = self.tmux(&["display-message", "-p", "#{pane_pid}"]).unwrap().stdout;
        let shell = String::from_utf8(shell).unwrap().trim().to_owned();
        let program = std::fs::read_to_string(format!("/proc/{shell}/task/{shell}/children")).unwrap();
        program.trim().to_owned()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.tmux(&["kill-server"]);
    }
}
