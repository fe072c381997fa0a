//! Flame graphs of the stacks that `perf script` prints.

use crate::plot::{LEFT_EDGE, TOP, escaped, framed, text};
use std::collections::BTreeMap;

pub const SCRIPT: [&str; 4] = ["script", "--no-inline", "--fields", "ip,sym,dso"];

const HINT: &str = "Width: part of the server's CPU time. \
                    Blue: Lockward. Grey: the server. Orange: libraries. Purple: the kernel.";
const WIDTH: f64 = 728.0;
const ROW: f64 = 17.0;
/// Frames that are narrower are left out.
const NARROWEST: f64 = 4.0;
const LETTER: f64 = 6.8;
/// A name with less room is left out.
const SHORTEST_NAME: usize = 5;

/// A function, its calls of other functions, and the number of samples in all of them.
#[derive(Debug, Default)]
pub struct Frame {
    samples: usize,
    calls: BTreeMap<Function, Self>,
}

/// The class of the colour, and the name.
type Function = (&'static str, String);

impl Frame {
    /// The event loop of the server, with all stacks of this output.
    pub fn of(script: &str) -> Self {
        let mut all = Self::default();
        for sample in script.split("\n\n") {
            // The innermost function comes first. The functions outside of the event loop are the same in all samples.
            let functions = sample.lines().filter_map(function).take_while(|(_, name)| name != "aeMain");
            let mut stack: Vec<Function> = functions.collect();
            // The functions within the kernel are one frame.
            let in_kernel = stack.iter().take_while(|(class, _)| *class == KERNEL).count();
            stack.drain(..in_kernel.saturating_sub(1));
            if let Some((KERNEL, name)) = stack.first_mut() {
                "kernel".clone_into(name);
            }
            all.add(&stack);
        }
        all
    }

    fn add(&mut self, stack: &[Function]) {
        self.samples += 1;
        if let Some((outermost, rest)) = stack.split_last() {
            self.calls.entry(outermost.clone()).or_default().add(rest);
        }
    }

    pub fn draw(&self, title: &str, below: &str) -> String {
        let sample = WIDTH / self.samples as f64;
        let bottom = TOP + ROW * self.height(sample) as f64;
        let mut body = String::new();
        self.draw_calls(LEFT_EDGE, bottom - ROW, sample, &mut body);
        framed(title, HINT, below, bottom + ROW, &body)
    }

    /// The calls that are wide enough to be drawn. `sample` is the width of a sample.
    fn drawn(&self, sample: f64) -> impl Iterator<Item = (&Function, &Self)> {
        self.calls.iter().filter(move |(_, call)| call.samples as f64 * sample >= NARROWEST)
    }

    fn height(&self, sample: f64) -> usize {
        self.drawn(sample).map(|(_, call)| 1 + call.height(sample)).max().unwrap_or(0)
    }

    fn draw_calls(&self, mut x: f64, y: f64, sample: f64, body: &mut String) {
        for ((class, name), call) in self.drawn(sample) {
            let width = call.samples as f64 * sample;
            let part = 100.0 * width / WIDTH;
            *body += &format!(
                "<rect class=\"{class} frame\" x=\"{x:.1}\" y=\"{y}\" width=\"{:.1}\" height=\"{}\">\
                 <title>{}: {part:.1} %</title></rect>\n",
                width - 1.0,
                ROW - 1.0,
                escaped(name),
            );
            let room = ((width - 4.0) / LETTER) as usize;
            if name.chars().count() <= room {
                *body += &text("small", x + 2.0, y + 12.0, name);
            } else if room >= SHORTEST_NAME {
                let beginning: String = name.chars().take(room - 1).collect();
                *body += &text("small", x + 2.0, y + 12.0, &format!("{beginning}…"));
            }
            call.draw_calls(x, y - ROW, sample, body);
            x += width;
        }
    }
}

const KERNEL: &str = "third";

/// The function in a line like `7f3a1 name+0x12 (/usr/bin/redis-server)`. `None` if its name is unknown.
fn function(line: &str) -> Option<Function> {
    let (_, named) = line.trim().split_once(' ')?;
    let (name, file) = named.trim_end_matches(')').rsplit_once(" (")?;
    let class = match file.rsplit('/').next()? {
        file if file.starts_with("liblockward") => "ours",
        file if file.starts_with('[') => KERNEL,
        file if file.starts_with("lib") => "second",
        _ => "other",
    };
    (name != "[unknown]").then(|| (class, name.to_owned()))
}
