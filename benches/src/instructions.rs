//! Instructions of the server for a pair, counted by callgrind: the same numbers on a busy machine.
//!
//! Counted is the whole process, from start to end, once with many pairs and once with fewer: the difference is the
//! pairs alone. The processor's own counter (`perf stat -e instructions:u`) would do the same without the wait, but
//! most virtual machines have none.

use crate::pairs::Pair;
use crate::pipeline::Pipeline;
use crate::server::Server;
use std::fs;
use std::process::{Command, Stdio};

/// Commands on the way on the only connection.
const DEPTH: usize = 16;
const FEW: usize = 250;
const MANY: usize = 2_250;

/// Whether callgrind is there.
pub fn can_be_counted() -> bool {
    let asked =
        Command::new("valgrind").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    asked.is_ok_and(|status| status.success())
}

/// Instructions a pair.
pub fn per_pair(pair: Pair, config: &[&str]) -> f64 {
    let (few, many) = (total(pair, config, FEW), total(pair, config, MANY));
    let pairs = (MANY - FEW) * DEPTH / 2;
    (many - few) / pairs as f64
}

fn total(pair: Pair, config: &[&str], batches: usize) -> f64 {
    let callgrind =
        ["valgrind", "--quiet", "--tool=callgrind", "--callgrind-out-file={dir}/counted", "--log-fd=1"];
    let config: Vec<&str> = config.iter().chain(&["hz 1", "dynamic-hz no"]).copied().collect();
    let mut server = Server::start_under(&callgrind, &config);
    let batch = pair.batch(&server, 0, DEPTH);
    Pipeline::open(&server, 1).run(&[batch], batches);
    server.end();
    let counted = fs::read_to_string(server.dir().join("counted")).expect("what callgrind has counted");
    let totals = counted.lines().find_map(|line| line.strip_prefix("totals: ")?.trim().parse().ok());
    totals.expect("the total of callgrind")
}
