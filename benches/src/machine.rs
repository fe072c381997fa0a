//! The machine and the day of a run.

use crate::placement::cpus;
use std::fs;
use std::process::Command;

/// The day, the processors, the memory and the kernel.
pub fn circumstances() -> String {
    let read = |file: &str| fs::read_to_string(file).unwrap_or_default();
    let field = |file: &str, name: &str| {
        let text = read(file);
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.trim_start().strip_prefix(':'));
        line.map(|value| value.trim().to_owned()).unwrap_or_default()
    };
    let day = Command::new("date").args(["-u", "+%F"]).output().map(|output| output.stdout);
    let day = String::from_utf8_lossy(&day.unwrap_or_default()).trim().to_owned();
    let processor = field("/proc/cpuinfo", "model name");
    let kilobytes: f64 = field("/proc/meminfo", "MemTotal").trim_end_matches(" kB").parse().unwrap_or(0.0);
    let kernel = read("/proc/sys/kernel/osrelease");
    let kernel = kernel.trim().split('-').next().unwrap_or_default();
    let (cpus, gigabytes) = (cpus(), kilobytes * 1024.0 / 1e9);
    format!("{day}, {cpus} CPUs ({processor}), {gigabytes:.0} GB, Linux {kernel}")
}
