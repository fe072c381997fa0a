//! The machine and the day of a run.

use crate::placement::{cpus, goes_before_others};
use crate::results::Machine;
use std::fs;
use std::process::Command;

/// The processor, memory, kernel and load of the machine.
pub fn machine() -> Machine {
    let field = |file: &str, name: &str| {
        let text = fs::read_to_string(file).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.trim_start().strip_prefix(':'));
        line.map(|value| value.trim().to_owned()).unwrap_or_default()
    };
    let kilobytes: u64 = field("/proc/meminfo", "MemTotal").trim_end_matches(" kB").parse().unwrap_or(0);
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let version = release.trim().split('-').next().unwrap_or_default();
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    Machine {
        processor: field("/proc/cpuinfo", "model name"),
        cpus: cpus(),
        memory: kilobytes * 1024,
        kernel: format!("Linux {version}"),
        goes_before_others: goes_before_others(),
        load_before: load.split(' ').next().and_then(|load| load.parse().ok()).unwrap_or(0.0),
    }
}

/// The day, as `YYYY-MM-DD`.
pub fn today() -> String {
    let said =
        Command::new("date").args(["-u", "+%F"]).output().map(|output| output.stdout).unwrap_or_default();
    String::from_utf8_lossy(&said).trim().to_owned()
}
