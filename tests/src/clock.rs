//! A wall clock for one server. A test can step this clock.

use crate::process::temporary_path;
use crate::server::Setup;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Duration;

/// The wall clock of one server. The server's monotonic clock is not changed.
#[derive(Debug)]
pub struct WallClock {
    path: PathBuf,
    offset: i64,
}

impl WallClock {
    /// A clock that shows the time of the machine.
    #[track_caller]
    pub fn new() -> Self {
        let path = temporary_path("clock");
        fs::write(&path, [0; 8]).expect("a writable directory");
        Self { path, offset: 0 }
    }

    /// Steps the clock forward.
    #[track_caller]
    pub fn forward(&mut self, step: Duration) {
        self.step(i64::try_from(step.as_micros()).expect("a step"));
    }

    /// Steps the clock back.
    #[track_caller]
    pub fn back(&mut self, step: Duration) {
        self.step(-i64::try_from(step.as_micros()).expect("a step"));
    }

    fn step(&mut self, micros: i64) {
        self.offset += micros;
        let file = File::options().write(true).open(&self.path).expect("the clock's file");
        file.write_all_at(&self.offset.to_ne_bytes(), 0).expect("a step");
    }
}

impl Default for WallClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for WallClock {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

impl Setup {
    /// Makes the server read its wall clock from `clock`.
    #[track_caller]
    pub fn clock(self, clock: &WallClock) -> Self {
        self.shim("clock_shim", "LOCKWARD_CLOCK", &clock.path)
    }
}
