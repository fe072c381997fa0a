//! Plots as SVG, in light or dark colours as the reader's system prefers: lines with a logarithmic x axis, and bars.

use crate::results::whole;
use std::fmt::Write;

const WIDTH: f64 = 760.0;
pub const LEFT_EDGE: f64 = 16.0;
/// The area of lines and bars. The names of the lines are to the right of this area.
const LEFT: f64 = 70.0;
const RIGHT: f64 = 530.0;
pub const TOP: f64 = 84.0;
const BOTTOM: f64 = 330.0;
const NAME: f64 = 20.0;
const LABEL: f64 = 50.0;
const BAR: f64 = 28.0;
/// Where all bars begin, and where the longest bar ends. Names are to the left of the bars, values to the right.
const BARS: [f64; 2] = [220.0, 660.0];

/// The style of a chart. It has the colours of the pictures in docs/concepts.
const STYLE: &str = "
  .paper { fill: #ffffff; stroke: #d0d7de }
  text { font: 13px sans-serif; fill: #1f2328 }
  .title { font-size: 16px; font-weight: bold }
  .faint { fill: #59636e }
  .small { font-size: 11px }
  .end { text-anchor: end }
  .middle { text-anchor: middle }
  .grid { stroke: #d0d7de }
  .ours { stroke: #0969da; fill: #0969da }
  .second { stroke: #bc4c00; fill: #bc4c00 }
  .third { stroke: #8250df; fill: #8250df }
  .other { fill: #8c959f }
  .line { fill: none; stroke-width: 2 }
  @media (prefers-color-scheme: dark) {
    .paper { fill: #0d1117; stroke: #3d444d }
    text { fill: #e6edf3 }
    .faint { fill: #9198a1 }
    .grid { stroke: #3d444d }
    .ours { stroke: #58a6ff; fill: #58a6ff }
    .second { stroke: #f0883e; fill: #f0883e }
    .third { stroke: #a371f7; fill: #a371f7 }
    .other { fill: #656c76 }
    .line { fill: none }
  }
  .frame { stroke: none; fill-opacity: 0.4 }
";

/// Two lines with a logarithmic x axis. The y axis begins at 0, and shows costs: lower is better.
#[derive(Clone, Debug)]
pub struct Plot {
    /// The name of the file, without `.svg`.
    pub name: String,
    pub title: String,
    pub x: String,
    pub y: String,
    pub lines: [Line; 2],
}

/// The name beside a line, and the points from left to right. All lines have the same x values.
pub type Line = (String, Vec<(f64, f64)>);

impl Plot {
    pub fn draw(&self, below: &str) -> String {
        let points = || self.lines.iter().flat_map(|(_, points)| points);
        let (first, last) = points()
            .map(|(x, _)| x.log2())
            .fold((f64::MAX, f64::MIN), |(low, high), x| (low.min(x), high.max(x)));
        let highest = points().map(|(_, y)| *y).fold(0.0, f64::max);
        let step = step(highest / 5.0);
        let top = (highest / step).ceil() * step;
        let x = |number: f64| LEFT + 20.0 + (RIGHT - LEFT - 40.0) * (number.log2() - first) / (last - first);
        let y = |number: f64| BOTTOM - (BOTTOM - TOP) * number / top;

        let mut body = text("faint", LEFT_EDGE, TOP - 12.0, &self.y);
        for mark in 0..=(top / step).round() as usize {
            let (number, at) = (mark as f64 * step, y(mark as f64 * step));
            let _ = writeln!(body, "<path class=\"grid\" d=\"M {LEFT} {at:.1} H {RIGHT}\"/>");
            body += &text("end", LEFT - 8.0, at + 4.0, &number.to_string());
        }
        let numbers: Vec<f64> = self.lines[0].1.iter().map(|(x, _)| *x).collect();
        for (place, number) in numbers.iter().enumerate() {
            // If there is no room before the next label, a number has no label.
            if numbers.get(place + 1).is_none_or(|next| x(*next) - x(*number) > LABEL) {
                body += &text("middle", x(*number), BOTTOM + 20.0, &whole(*number));
            }
        }
        body += &text("middle faint", (LEFT + RIGHT) / 2.0, BOTTOM + 42.0, &self.x);
        for (number, ((name, points), class)) in self.lines.iter().zip(["ours", "second"]).enumerate() {
            let middle = TOP + NAME * number as f64;
            let _ = writeln!(body, "<circle class=\"{class}\" cx=\"{RIGHT}\" cy=\"{middle}\" r=\"4\"/>");
            body += &text("", RIGHT + 10.0, middle + 4.0, name);
            let mut places = String::new();
            for (at, number) in points {
                let (x, y) = (x(*at), y(*number));
                let _ = write!(places, "{x:.1},{y:.1} ");
                let _ = writeln!(body, "<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\"/>");
            }
            let _ = writeln!(body, "<polyline class=\"{class} line\" points=\"{places}\"/>");
        }
        framed(&self.title, "Lower is better.", below, BOTTOM + 62.0, &body)
    }
}

/// A bar: the name beside it, its length, and whether it is Lockward's.
pub type Bar<'a> = (&'a str, f64, bool);

/// The SVG of bars from 0, each with its value, with a note below. Longer bars are better.
pub fn draw_bars(title: &str, bars: &[Bar], below: &str) -> String {
    let [left, right] = BARS;
    let longest = bars.iter().map(|(_, number, _)| *number).fold(f64::MIN_POSITIVE, f64::max);
    let mut body = String::new();
    for (at, (name, number, is_ours)) in bars.iter().enumerate() {
        let (y, width) = (TOP - 8.0 + BAR * at as f64, (right - left) * number / longest);
        let (class, middle) = (if *is_ours { "ours" } else { "other" }, y + 14.0);
        body += &text("end", left - 8.0, middle, name);
        let place = format!("x=\"{left}\" y=\"{y}\" width=\"{width:.1}\" height=\"18\"");
        let _ = writeln!(body, "<rect class=\"{class}\" {place}/>");
        body += &text("", left + width + 8.0, middle, &whole(*number));
    }
    framed(title, "More is better.", below, TOP + BAR * bars.len() as f64 + 10.0, &body)
}

/// A picture with its title. `last` is the y coordinate of the text `below`.
pub fn framed(title: &str, hint: &str, below: &str, last: f64, body: &str) -> String {
    let (title, hint, below, height) = (escaped(title), escaped(hint), escaped(below), last + 18.0);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {WIDTH} {height}\" role=\"img\">\n\
         <title>{title}</title>\n<style>{STYLE}</style>\n\
         <rect class=\"paper\" x=\"0.5\" y=\"0.5\" width=\"{}\" height=\"{}\" rx=\"8\"/>\n\
         <text class=\"title\" x=\"16\" y=\"30\">{title}</text>\n\
         <text class=\"faint\" x=\"16\" y=\"50\">{hint}</text>\n\
         {body}<text class=\"faint small\" x=\"16\" y=\"{last}\">{below}</text>\n</svg>\n",
        WIDTH - 1.0,
        height - 1.0,
    )
}

pub fn text(class: &str, x: f64, y: f64, text: &str) -> String {
    format!("<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{}</text>\n", escaped(text))
}

pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

/// The smallest of 1, 2, 5, 10, ... that is at least `rough`.
fn step(rough: f64) -> f64 {
    let unit = 10f64.powf(rough.log10().floor());
    [1.0, 2.0, 5.0, 10.0].map(|digit| digit * unit).into_iter().find(|step| *step >= rough).unwrap_or(rough)
}
