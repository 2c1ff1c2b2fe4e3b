//! SVG plots: small, static, coloured by classes so that the page's light and dark schemes both apply.

use std::fmt::Write as _;

use super::html::escape;

/// Colours of series, by class; the style sheet has this many.
pub(crate) const SERIES: usize = 8;

/// Height of a character of labels, and an upper estimate of its width.
const TEXT: f64 = 12.0;
const CHARACTER: f64 = 6.7;

/// A line or a set of points.
pub(crate) struct Series {
    pub(crate) label: String,
    pub(crate) points: Vec<(f64, f64)>,
    /// Which colour.
    pub(crate) colour: usize,
}

/// A value with an interval, in a row of its own.
pub(crate) struct Bar {
    pub(crate) label: String,
    pub(crate) value: f64,
    /// Lower and upper end.
    pub(crate) interval: Option<(f64, f64)>,
    /// The single values behind it.
    pub(crate) dots: Vec<f64>,
    pub(crate) colour: usize,
}

/// Round numbers that divide `low..=high` into about `count` steps.
pub(crate) fn ticks(low: f64, high: f64, count: usize) -> Vec<f64> {
    let span = high - low;
    if !(span.is_finite() && span > 0.0) || count == 0 {
        return vec![low];
    }
    let raw = span / count as f64;
    let magnitude = 10f64.powf(raw.log10().floor());
    let step = [1.0, 2.0, 2.5, 5.0, 10.0].iter().map(|factor| factor * magnitude).find(|step| *step >= raw * 0.999);
    let step = step.unwrap_or(10.0 * magnitude);
    let first = (low / step).ceil() as i64;
    let last = (high / step).floor() as i64;
    (first..=last).take(50).map(|tick| tick as f64 * step).collect()
}

/// A tick's label: as many digits as the step needs.
fn label(value: f64, step: f64) -> String {
    let digits = if step >= 1.0 { 0 } else { (-step.log10().floor()).clamp(0.0, 6.0) as usize };
    let digits = if (step * 10f64.powi(digits as i32)).fract() > 1e-6 { digits + 1 } else { digits };
    let value = if value.abs() < step * 1e-6 { 0.0 } else { value };
    format!("{value:.digits$}")
}

fn range(values: impl Iterator<Item = f64>, from_zero: bool) -> (f64, f64) {
    let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
    for value in values.filter(|value| value.is_finite()) {
        low = low.min(value);
        high = high.max(value);
    }
    if low > high {
        return (0.0, 1.0);
    }
    if from_zero {
        low = low.min(0.0);
    }
    let room = (high - low) * 0.04;
    let room = if room > 0.0 { room } else { high.abs().max(1.0) * 0.05 };
    (if from_zero { low } else { low - room }, high + room)
}

struct Frame {
    left: f64,
    top: f64,
    width: f64,
    height: f64,
    x: (f64, f64),
    y: (f64, f64),
}

impl Frame {
    fn x(&self, value: f64) -> f64 {
        self.left + (value - self.x.0) / (self.x.1 - self.x.0) * self.width
    }

    fn y(&self, value: f64) -> f64 {
        self.top + self.height - (value - self.y.0) / (self.y.1 - self.y.0) * self.height
    }
}

fn open(width: f64, height: f64, title: &str) -> String {
    format!(
        "<svg viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\" aria-label=\"{0}\"><title>{0}</title>",
        escape(title)
    )
}

fn text(svg: &mut String, class: &str, x: f64, y: f64, anchor: &str, content: &str) {
    let _ = write!(
        svg,
        "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{}</text>",
        escape(content)
    );
}

fn x_axis(svg: &mut String, frame: &Frame, name: &str) {
    let marks = ticks(frame.x.0, frame.x.1, 7);
    let step = marks.windows(2).map(|pair| pair[1] - pair[0]).next().unwrap_or(1.0);
    let bottom = frame.top + frame.height;
    for mark in &marks {
        let x = frame.x(*mark);
        let _ = write!(
            svg,
            "<line class=\"grid\" x1=\"{x:.1}\" y1=\"{:.1}\" x2=\"{x:.1}\" y2=\"{bottom:.1}\"/>",
            frame.top
        );
        text(svg, "tick", x, bottom + TEXT + 4.0, "middle", &label(*mark, step));
    }
    text(svg, "axis", frame.left + frame.width / 2.0, bottom + 2.0 * TEXT + 12.0, "middle", name);
}

fn y_axis(svg: &mut String, frame: &Frame, name: &str) {
    let marks = ticks(frame.y.0, frame.y.1, 5);
    let step = marks.windows(2).map(|pair| pair[1] - pair[0]).next().unwrap_or(1.0);
    for mark in &marks {
        let y = frame.y(*mark);
        let right = frame.left + frame.width;
        let _ = write!(
            svg,
            "<line class=\"grid\" x1=\"{:.1}\" y1=\"{y:.1}\" x2=\"{right:.1}\" y2=\"{y:.1}\"/>",
            frame.left
        );
        text(svg, "tick", frame.left - 8.0, y + 4.0, "end", &label(*mark, step));
    }
    text(svg, "axis", 4.0, frame.top - 12.0, "start", name);
}

/// Lines over a common pair of axes. Many lines of one colour are drawn thin.
pub(crate) fn lines(title: &str, x_name: &str, y_name: &str, series: &[Series], from_zero: bool) -> String {
    let (width, height) = (860.0, 340.0);
    let all = || series.iter().flat_map(|series| &series.points);
    let frame = Frame {
        left: 62.0,
        top: 34.0,
        width: width - 62.0 - 16.0,
        height: height - 34.0 - 52.0,
        x: range(all().map(|point| point.0), true),
        y: range(all().map(|point| point.1), from_zero),
    };
    let mut svg = open(width, height, title);
    x_axis(&mut svg, &frame, x_name);
    y_axis(&mut svg, &frame, y_name);
    for series in series {
        let mut path = String::new();
        let finite = series.points.iter().filter(|(x, y)| x.is_finite() && y.is_finite());
        for (index, (x, y)) in finite.enumerate() {
            let _ = write!(path, "{}{:.1} {:.1}", if index == 0 { "M" } else { "L" }, frame.x(*x), frame.y(*y));
        }
        let _ = write!(
            svg,
            "<path class=\"line s{}\" d=\"{path}\"><title>{}</title></path>",
            series.colour % SERIES,
            escape(&series.label)
        );
    }
    svg.push_str("</svg>");
    svg
}

/// Points in columns: one column a label, one colour a series.
pub(crate) fn columns(title: &str, y_name: &str, labels: &[String], series: &[Series]) -> String {
    let longest = labels.iter().map(|label| label.chars().count()).max().unwrap_or(1).min(32) as f64;
    let below = longest * CHARACTER * 0.64 + 26.0;
    let (width, plot) = (860.0, 220.0);
    let left = 62.0f64.max(longest * CHARACTER * 0.5);
    let frame = Frame {
        left,
        top: 34.0,
        width: width - left - 16.0,
        height: plot,
        x: (-0.5, labels.len().max(1) as f64 - 0.5),
        y: range(series.iter().flat_map(|series| &series.points).map(|point| point.1), false),
    };
    let mut svg = open(width, plot + 34.0 + below, title);
    y_axis(&mut svg, &frame, y_name);
    // Series share a column; each is shifted from its middle.
    let (spread, middle) = (0.5 / series.len().max(1) as f64, (series.len().max(1) - 1) as f64 / 2.0);
    for (column, label) in labels.iter().enumerate() {
        let (x, y) = (frame.x(column as f64), frame.top + frame.height + 16.0);
        let short: String = label.chars().take(32).collect();
        let _ = write!(
            svg,
            "<text class=\"tick\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"end\" transform=\"rotate(-38 {x:.1} {y:.1})\">{}</text>",
            escape(&short)
        );
    }
    for (index, series) in series.iter().enumerate() {
        let shift = (index as f64 - middle) * spread;
        for (x, y) in &series.points {
            let _ = write!(
                svg,
                "<circle class=\"dot s{}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"4\"><title>{}: {y:.2}</title></circle>",
                series.colour % SERIES,
                frame.x(x + shift),
                frame.y(*y),
                escape(&series.label)
            );
        }
    }
    svg.push_str("</svg>");
    svg
}

/// Values with intervals, one row each; the single values behind them as faint dots. A dashed line may mark a reference.
pub(crate) fn bars(title: &str, x_name: &str, bars: &[Bar], reference: Option<f64>) -> String {
    let longest = bars.iter().map(|bar| bar.label.chars().count()).max().unwrap_or(1).min(40) as f64;
    let left = (longest * CHARACTER + 20.0).clamp(80.0, 300.0);
    let row = 34.0;
    let (width, plot) = (860.0, row * bars.len().max(1) as f64);
    let all = bars.iter().flat_map(|bar| {
        let ends = bar.interval.map(|(low, high)| [low, high]);
        bar.dots.iter().copied().chain([bar.value]).chain(ends.into_iter().flatten()).chain(reference)
    });
    let frame =
        Frame { left, top: 12.0, width: width - left - 90.0, height: plot, x: range(all, false), y: (0.0, 1.0) };
    let mut svg = open(width, plot + 12.0 + 46.0, title);
    x_axis(&mut svg, &frame, x_name);
    if let Some(reference) = reference {
        let x = frame.x(reference);
        let _ = write!(
            svg,
            "<line class=\"reference\" x1=\"{x:.1}\" y1=\"{:.1}\" x2=\"{x:.1}\" y2=\"{:.1}\"/>",
            frame.top,
            frame.top + plot
        );
    }
    for (index, bar) in bars.iter().enumerate() {
        let y = frame.top + row * (index as f64 + 0.5);
        let short: String = bar.label.chars().take(40).collect();
        text(&mut svg, "name", left - 10.0, y + 4.0, "end", &short);
        let colour = bar.colour % SERIES;
        for dot in &bar.dots {
            let _ =
                write!(svg, "<circle class=\"faint s{colour}\" cx=\"{:.1}\" cy=\"{y:.1}\" r=\"3\"/>", frame.x(*dot));
        }
        if let Some((low, high)) = bar.interval {
            let (low, high) = (frame.x(low), frame.x(high));
            let _ = write!(
                svg,
                "<path class=\"interval s{colour}\" d=\"M{low:.1} {y:.1}L{high:.1} {y:.1}M{low:.1} {0:.1}L{low:.1} {1:.1}M{high:.1} {0:.1}L{high:.1} {1:.1}\"/>",
                y - 6.0,
                y + 6.0
            );
        }
        let _ =
            write!(svg, "<circle class=\"value s{colour}\" cx=\"{:.1}\" cy=\"{y:.1}\" r=\"5\"/>", frame.x(bar.value));
        text(&mut svg, "tick", width - 6.0, y + 4.0, "end", &format!("{:.3}", bar.value));
    }
    svg.push_str("</svg>");
    svg
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_inside() {
        assert_eq!(ticks(0.0, 10.0, 5), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(ticks(3.0, 3.0, 5), [3.0]);
        assert_eq!(ticks(f64::NAN, 1.0, 5).len(), 1);
        assert_eq!((label(0.25, 0.05), label(2.5, 2.5), label(40.0, 20.0)), ("0.25".into(), "2.5".into(), "40".into()));
    }

    #[test]
    fn texts_are_escaped_and_nothing_is_not_a_number() {
        let series = [Series { label: "<b>\"&".to_owned(), points: vec![(0.0, f64::NAN), (1.0, 2.0)], colour: 9 }];
        let svg = lines("<t>", "x", "y", &series, true);
        assert!(!svg.contains("<b>") && svg.contains("&lt;b&gt;"));
        assert!(columns("t", "y", &[], &[]).ends_with("</svg>"));
        assert!(bars("t", "x", &[], None).ends_with("</svg>"));
    }
}
