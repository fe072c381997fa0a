//! Tests of writing and reading histories.

use lockward_checker::history::{History, HoldsReleased, Line, Operation, Outcome, Wait};
use lockward_checker::recorder::Recorder;
use std::path::{Path, PathBuf};

/// A file in Cargo's directory for temporary files of tests.
fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

#[test]
fn an_invalid_line_is_reported_with_its_number() {
    let file = file("broken");
    std::fs::write(&file, "{\"fault\":{\"name\":\"kill\",\"start\":1,\"end\":2}}\n{\"call\":{\"cli\n")
        .unwrap();
    let error = History::read(&file).unwrap_err().to_string();
    assert!(error.starts_with("line 2: "), "{error}");
}

#[test]
fn many_threads_share_a_recorder() {
    let file = file("shared");
    let recorder = Recorder::create(&file).unwrap();
    std::thread::scope(|threads| {
        for client in 0..8 {
            let recorder = &recorder;
            threads.spawn(move || {
                for _ in 0..100 {
                    let operation = Operation::Release { released: HoldsReleased::One, token: None };
                    let call = recorder.start(client, 0, "k", &format!("{client}"), operation);
                    call.answered(Outcome::Left { holds: 0 });
                }
                let operation = Operation::exclusive(1, Wait::Unlimited);
                recorder.start(client, 0, "k", &format!("{client}"), operation).enqueued();
            });
        }
    });
    recorder.finish().unwrap();

    let history = History::read(&file).unwrap();
    assert_eq!(history.calls().count(), 8 * 101);
    for client in 0..8 {
        let own = history.lines.iter().filter_map(|line| match line {
            Line::Call(call) if call.client == client => Some(call),
            Line::Call(_) | Line::Data(_) | Line::Fault(_) => None,
        });
        let own: Vec<_> = own.collect();
        assert!(
            own.windows(2).all(|pair| pair[0].end <= Some(pair[1].start)),
            "the calls of a thread are not in order of time"
        );
        let last = own.last().unwrap();
        assert!(
            last.enqueued.is_some() && last.end.is_none(),
            "a call that was dropped without a reply: {last:?}"
        );
    }
}
