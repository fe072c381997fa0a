//! Flame graphs: where the server's CPU time goes, drawn from samples of its stack.
//!
//! `perf` takes the samples and unwinds the stacks. All frames of the kernel are drawn as one, because their names say nothing
//! about the server. The system call is the frame below them.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::process::{Child, Command, Stdio};
use std::{fs, path::Path};

const WIDTH: f64 = 1_000.0;
const ROW: f64 = 17.0;
const TOP: f64 = 54.0;
/// Narrower frames are not drawn.
const NARROWEST: f64 = 3.0;
/// The width of a letter of 11 pixels.
const LETTER: f64 = 6.3;
/// Frames below the event loop. Every stack has them.
const ROOTS: [&str; 6] =
    ["_start", "__libc_start_main", "__libc_start_call_main", "__libc_start_main_impl", "main", "aeMain"];

const STYLE: &str = "
  .paper { fill: #ffffff; stroke: #d0d7de }
  rect { stroke: #ffffff; stroke-width: 0.5 }
  text { font: 11px monospace; fill: #1f2328 }
  .title { font: bold 16px sans-serif }
  .faint { font: 13px sans-serif; fill: #59636e }
  .module { fill: #8fc1ff }
  .server { fill: #d8dee4 }
  .library { fill: #f5d9a8 }
  .kernel { fill: #e3c5f5 }
  @media (prefers-color-scheme: dark) {
    .paper { fill: #0d1117; stroke: #3d444d }
    rect { stroke: #0d1117 }
    text { fill: #e6edf3 }
    .faint { fill: #9198a1 }
    .module { fill: #1f4f8f }
    .server { fill: #343b43 }
    .library { fill: #6b4d16 }
    .kernel { fill: #54306e }
  }
";

/// Whose code a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Code {
    Module,
    Server,
    Library,
    Kernel,
}

/// A function in a stack.
type Frame = (Code, String);

/// A running `perf record` of a process.
#[derive(Debug)]
pub struct Recording {
    perf: Child,
}

/// All samples in a function that was called along one path, and below it.
#[derive(Debug, Default)]
pub struct Samples {
    count: usize,
    callees: BTreeMap<Frame, Samples>,
}

impl Recording {
    /// Starts to sample a process. `file` is where the recording is written.
    pub fn start(pid: u32, file: &Path) -> Self {
        let mut perf = Command::new("perf");
        perf.args([
            "record",
            "--quiet",
            "--event",
            "cpu-clock",
            "--freq",
            "997",
            "--call-graph",
            "dwarf,16384",
        ]);
        perf.arg("--output").arg(file).args(["--pid", &pid.to_string()]);
        Self { perf: perf.stderr(Stdio::null()).spawn().expect("perf: install linux-perf") }
    }

    /// Ends the recording and reads it.
    pub fn end(mut self, file: &Path) -> Samples {
        let pid = self.perf.id().try_into().expect("a process");
        // SAFETY: a signal to our own child, which has not been waited for.
        unsafe { libc::kill(pid, libc::SIGINT) };
        let _ = self.perf.wait();
        let script = Command::new("perf")
            .args(["script", "--no-inline", "--fields", "ip,sym,dso", "--input"])
            .arg(file)
            .output();
        let _ = fs::remove_file(file);
        let mut all = Samples::default();
        String::from_utf8_lossy(&script.expect("perf").stdout).split("\n\n").for_each(|stack| all.add(stack));
        all
    }
}

impl Samples {
    /// The number of samples.
    pub const fn count(&self) -> usize {
        self.count
    }

    /// Adds a sample: a line for each frame, the innermost first.
    fn add(&mut self, stack: &str) {
        let mut frames: Vec<Frame> = stack.lines().filter_map(frame).collect();
        frames.reverse();
        frames.dedup();
        frames.retain(|(_, name)| !ROOTS.contains(&name.as_str()));
        if stack.trim().is_empty() {
            return;
        }
        self.count += 1;
        let mut at = self;
        for frame in frames {
            at = at.callees.entry(frame).or_default();
            at.count += 1;
        }
    }

    /// The functions that take at least this part of all samples, with the functions that they call. The largest comes first. A
    /// function that is called along several paths counts once.
    pub fn at_least(&self, part: f64) -> Vec<(String, f64)> {
        let mut counts = BTreeMap::new();
        self.count_functions(&mut Vec::new(), &mut counts);
        let share = |count| count as f64 / self.count.max(1) as f64;
        let mut large: Vec<_> = counts.into_iter().map(|((_, name), count)| (name, share(count))).collect();
        large.retain(|(_, share)| *share >= part);
        large.sort_by(|one, other| other.1.total_cmp(&one.1));
        large
    }

    fn count_functions<'a>(&'a self, above: &mut Vec<&'a Frame>, counts: &mut BTreeMap<Frame, usize>) {
        for (frame, samples) in &self.callees {
            if !above.contains(&frame) {
                *counts.entry(frame.clone()).or_default() += samples.count;
            }
            above.push(frame);
            samples.count_functions(above, counts);
            above.pop();
        }
    }

    fn depth(&self, narrowest: usize) -> usize {
        let wide = self.callees.values().filter(|callee| callee.count >= narrowest);
        wide.map(|callee| 1 + callee.depth(narrowest)).max().unwrap_or_default()
    }

    /// The picture.
    pub fn draw(&self, title: &str, hint: &str) -> String {
        let scale = (WIDTH - 20.0) / self.count.max(1) as f64;
        let narrowest = (NARROWEST / scale).ceil() as usize;
        let height = TOP + self.depth(narrowest) as f64 * ROW + 34.0;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\">\
             \n<style>{STYLE}</style>\n<rect class=\"paper\" x=\"0.5\" y=\"0.5\" width=\"{}\" height=\"{}\"/>\n\
             <text class=\"title\" x=\"10\" y=\"24\">{title}</text>\n<text class=\"faint\" x=\"10\" y=\"43\">{hint}</text>\n",
            WIDTH - 1.0,
            height - 1.0,
        );
        let mut x = 10.0;
        for (code, name) in [
            (Code::Module, "Lockward"),
            (Code::Server, "the server"),
            (Code::Library, "libraries"),
            (Code::Kernel, "the kernel"),
        ] {
            let y = height - 22.0;
            let _ = writeln!(
                svg,
                "<rect class=\"{}\" x=\"{x}\" y=\"{y}\" width=\"12\" height=\"12\"/>",
                code.class()
            );
            let _ = writeln!(svg, "<text x=\"{}\" y=\"{}\">{name}</text>", x + 17.0, y + 10.0);
            x += 120.0;
        }
        self.draw_callees(&mut svg, scale, 10.0, height - 30.0 - ROW);
        svg + "</svg>\n"
    }

    fn draw_callees(&self, svg: &mut String, scale: f64, mut x: f64, y: f64) {
        for ((code, name), samples) in &self.callees {
            let width = samples.count as f64 * scale;
            if width >= NARROWEST {
                let class = code.class();
                let _ = writeln!(
                    svg,
                    "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y}\" width=\"{width:.1}\" height=\"{ROW}\"><title>{}: {:.1} %</title></rect>",
                    escaped(name),
                    width / (WIDTH - 20.0) * 100.0,
                );
                let room = ((width - 4.0) / LETTER) as usize;
                if room >= 4 {
                    let shown: String = name.chars().take(room).collect();
                    let _ = writeln!(
                        svg,
                        "<text x=\"{:.1}\" y=\"{}\">{}</text>",
                        x + 2.0,
                        y + 12.0,
                        escaped(&shown)
                    );
                }
                samples.draw_callees(svg, scale, x, y - ROW);
            }
            x += width;
        }
    }
}

impl Code {
    const fn class(self) -> &'static str {
        match self {
            Self::Module => "module",
            Self::Server => "server",
            Self::Library => "library",
            Self::Kernel => "kernel",
        }
    }
}

/// The frame in a line such as `7f1c0 call+0x1b (/usr/bin/redis-server)`; `None` for one without a name.
fn frame(line: &str) -> Option<Frame> {
    let (_, rest) = line.trim().split_once(' ')?;
    let (symbol, object) = rest.rsplit_once(" (")?;
    let object = object.trim_end_matches(')');
    let code = if object.starts_with("[kernel") {
        return Some((Code::Kernel, "kernel".to_owned()));
    } else if object.contains("liblockward") {
        Code::Module
    } else if object.contains("/lib") || object.starts_with('[') {
        Code::Library
    } else {
        Code::Server
    };
    let name = symbol.rsplit_once("+0x").map_or(symbol, |(name, _)| name);
    let name = name.split_once("@@").map_or(name, |(name, _version)| name);
    (name != "[unknown]").then(|| (code, plain(name)))
}

/// A name of Rust without its generic arguments and the hash at its end.
fn plain(name: &str) -> String {
    let name = name.split("::h").next().filter(|_| name.contains("::")).unwrap_or(name);
    let mut depth = 0_usize;
    name.chars()
        .filter(|letter| {
            match letter {
                '<' => depth += 1,
                '>' => {
                    depth = depth.saturating_sub(1);
                    return false;
                }
                _ => {}
            }
            depth == 0
        })
        .collect::<String>()
        .replace("::::", "::")
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
