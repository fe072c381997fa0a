//! Plots of lines, as SVG.

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use plotters::prelude::*;
use serde::{Deserialize, Serialize};
use std::ops::Range;

const SIZE: (u32, u32) = (860, 480);
const COLOURS: [RGBColor; 9] = [
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0x88, 0x88, 0x88),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0x33, 0x33, 0x33),
    RGBColor(0xe6, 0xab, 0x02),
    RGBColor(0x56, 0xb4, 0xe9),
    RGBColor(0x8c, 0x56, 0x4b),
];

/// A plot.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plot {
    /// The name of its file, without `.svg`.
    pub name: String,
    /// What it shows.
    pub title: String,
    /// How to read it: what is better.
    pub hint: String,
    /// The axis from left to right.
    pub x: Axis,
    /// The axis from below.
    pub y: Axis,
    /// The lines.
    pub lines: Vec<Line>,
}

/// An axis.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Axis {
    /// What it shows, with the unit.
    pub label: String,
    /// How.
    pub scale: Scale,
}

/// How an axis is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scale {
    /// Evenly.
    Linear,
    /// Each mark is a multiple of the one before.
    Log,
    /// By doubling.
    Double,
    /// Percentiles: 90 %, 99 %, 99.9 % are equally far apart.
    Percentile,
}

/// A line.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Line {
    /// What it shows.
    pub name: String,
    /// From left to right; of percentiles as parts of 1.
    pub points: Vec<(f64, f64)>,
    /// Whether each point is marked.
    pub marked: bool,
}

impl Scale {
    /// Where a number stands on the axis.
    fn place(self, number: f64) -> f64 {
        match self {
            Self::Linear => number,
            Self::Log => number.log10(),
            Self::Double => number.log2(),
            Self::Percentile => -(1.0 - number).log10(),
        }
    }

    fn mark(self, place: f64) -> String {
        let number = match self {
            Self::Linear => place,
            Self::Log => 10f64.powf(place),
            Self::Double => place.exp2(),
            Self::Percentile if place < 0.1 => return "0 %".to_owned(),
            Self::Percentile if (place - 2f64.log10()).abs() < 0.01 => return "50 %".to_owned(),
            Self::Percentile => {
                let digits = (place.round() as usize).saturating_sub(2);
                return format!("{:.digits$} %", 100.0 * (1.0 - 10f64.powf(-place)));
            }
        };
        if number >= 1000.0 && number.fract() < 1e-6 {
            let text = format!("{number:.0}");
            let (thousands, rest) = text.split_at(text.len() - 3);
            format!("{thousands},{rest}")
        } else {
            format!("{}", (number * 1000.0).round() / 1000.0)
        }
    }

    /// The places of the marks.
    fn marks(self, range: &Range<f64>) -> Vec<f64> {
        let whole = |step: f64| {
            let first = (range.start / step - 1e-9).ceil() as i64;
            let last = (range.end / step + 1e-9).floor() as i64;
            (first..=last).map(move |mark| mark as f64 * step).collect::<Vec<_>>()
        };
        match self {
            Self::Linear => {
                let rough = (range.end - range.start) / 6.0;
                let unit = 10f64.powf(rough.log10().floor());
                let step =
                    [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().find(|step| step * unit >= rough).unwrap_or(10.0);
                whole(step * unit)
            }
            Self::Log if range.end - range.start < 2.5 => {
                let marks = whole(1.0).into_iter().chain([range.start.floor()]);
                let marks = marks.flat_map(|decade| [1.0f64, 2.0, 5.0].map(|digit| decade + digit.log10()));
                let mut marks: Vec<f64> =
                    marks.filter(|mark| *mark >= range.start - 1e-9 && *mark <= range.end + 1e-9).collect();
                marks.sort_by(f64::total_cmp);
                marks.dedup();
                marks
            }
            Self::Log | Self::Double => whole(1.0),
            Self::Percentile => {
                [0.0, 2f64.log10()].into_iter().chain(whole(1.0).into_iter().skip(1)).collect()
            }
        }
    }

    /// From the smallest number to the largest, with some room; where it is divided evenly, from 0.
    fn range(self, numbers: impl Iterator<Item = f64>) -> Range<f64> {
        let places = numbers.map(|number| self.place(number));
        let (low, high) =
            places.fold((f64::MAX, f64::MIN), |(low, high), place| (low.min(place), high.max(place)));
        match self {
            Self::Linear => 0.0..high * 1.45, // the legend is above the lines,
            Self::Log => low - 0.1..high + 0.1,
            Self::Double => low - 0.2..high + 0.2,
            Self::Percentile => 0.0..high,
        }
    }
}

/// An axis as plotters wants it: numbers that are placed already.
struct Placed {
    scale: Scale,
    range: Range<f64>,
}

impl Ranged for Placed {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let part = (value - self.range.start) / (self.range.end - self.range.start);
        limit.0 + (f64::from(limit.1 - limit.0) * part).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.scale.marks(&self.range)
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

impl ValueFormatter<f64> for Placed {
    fn format_ext(&self, place: &f64) -> String {
        self.scale.mark(*place)
    }
}

impl Plot {
    /// The SVG.
    pub fn draw(&self, below: &str) -> String {
        let mut svg = String::new();
        self.draw_into(&mut svg, below).expect("a plot into memory");
        svg
    }

    fn draw_into(&self, svg: &mut String, below: &str) -> Result<(), Box<dyn std::error::Error>> {
        let root = SVGBackend::with_string(svg, SIZE).into_drawing_area();
        root.fill(&WHITE)?;
        let text = |size: i32, colour: RGBColor| ("sans-serif", size).into_font().color(&colour);
        root.draw(&Text::new(self.title.clone(), (16, 12), text(19, BLACK)))?;
        root.draw(&Text::new(self.hint.clone(), (16, 38), text(14, RGBColor(0x55, 0x55, 0x55))))?;
        root.draw(&Text::new(
            below.to_owned(),
            (16, SIZE.1 as i32 - 20),
            text(11, RGBColor(0x77, 0x77, 0x77)),
        ))?;
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let mut x = Placed { scale: self.x.scale, range: self.x.scale.range(points().map(|(x, _)| *x)) };
        let y = Placed { scale: self.y.scale, range: self.y.scale.range(points().map(|(_, y)| *y)) };
        // The names of many lines would cover their beginnings.
        let many = self.lines.len() > 6;
        if many {
            x.range.end += 0.4 * (x.range.end - x.range.start);
        }
        let names = if many { SeriesLabelPosition::UpperRight } else { SeriesLabelPosition::UpperLeft };
        let area = root.margin(62, 26, 8, 24);
        let mut chart =
            ChartBuilder::on(&area).x_label_area_size(48).y_label_area_size(72).build_cartesian_2d(x, y)?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(RGBColor(0xdd, 0xdd, 0xdd))
            .axis_style(RGBColor(0x88, 0x88, 0x88))
            .x_desc(self.x.label.as_str())
            .y_desc(self.y.label.as_str())
            .label_style(text(13, BLACK))
            .axis_desc_style(text(14, BLACK))
            .draw()?;
        for (line, colour) in self.lines.iter().zip(COLOURS.iter().cycle()) {
            let places: Vec<(f64, f64)> =
                line.points.iter().map(|(x, y)| (self.x.scale.place(*x), self.y.scale.place(*y))).collect();
            let colour = *colour;
            chart
                .draw_series(LineSeries::new(places.iter().copied(), colour.stroke_width(2)))?
                .label(line.name.as_str())
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(3)));
            if line.marked {
                chart.draw_series(places.iter().map(|place| Circle::new(*place, 4, colour.filled())))?;
            }
        }
        chart
            .configure_series_labels()
            .position(names)
            .background_style(WHITE.mix(0.85))
            .border_style(RGBColor(0xcc, 0xcc, 0xcc))
            .label_font(text(13, BLACK))
            .margin(10)
            .draw()?;
        root.present()?;
        Ok(())
    }
}
