//! Measures how the cost of Lockward grows with the number of locks, waiters, holders and nodes: `make bench-scale`.

use lockward_bench::scale::{STAGES, page};
use lockward_bench::suite::Suite;
use std::process::ExitCode;

fn main() -> ExitCode {
    let suite = Suite {
        about: "Measures how the cost of Lockward grows",
        stages: &STAGES,
        cases: Vec::new(),
        into: "target/scale",
        write_docs: page::write,
    };
    suite.main()
}
