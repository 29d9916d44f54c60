//! Latency and bus bandwidth against size, as an SVG picture.

use crate::report::{Report, Row};
use crate::sizes::short;
use std::fmt::Write as _;

const PANEL_WIDTH: f64 = 470.0;
const PANEL_HEIGHT: f64 = 330.0;
const TOP: f64 = 50.0;
const LEFTS: [f64; 2] = [80.0, 660.0];
const WIDTH: f64 = 1180.0;
/// Told apart also by people who do not see all colours (Okabe and Ito).
const COLOURS: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8c8c00"];

/// One picture of several runs, each with its name in the legend.
pub(crate) fn svg(runs: &[(String, Report)]) -> String {
    let series = series(runs);
    let sizes = span(series.iter().flat_map(|s| s.points.iter().map(|p| p.0)));
    let times = span(series.iter().flat_map(|s| s.points.iter().map(|p| p.1)));
    let bandwidths = span(series.iter().flat_map(|s| s.points.iter().map(|p| p.2)));
    let height = TOP + PANEL_HEIGHT + 80.0 + 20.0 * series.len() as f64;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
         height=\"{height}\" font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    let x = Axis::powers_of_two(sizes);
    let latency = Axis::logarithmic(times);
    let bandwidth = Axis::linear(bandwidths.1);
    panel(&mut out, LEFTS[0], "Time of one call (µs)", &x, &latency, &series, |p| p.1);
    panel(&mut out, LEFTS[1], "Bus bandwidth (GB/s)", &x, &bandwidth, &series, |p| p.2);
    legend(&mut out, &series);
    out.push_str("</svg>\n");
    out
}

struct Series {
    name: String,
    colour: &'static str,
    dashed: bool,
    /// Size, microseconds, GB/s.
    points: Vec<(f64, f64, f64)>,
}

/// One line per run, type, operator, root and placement. Rows of size 0 have no place on a logarithmic axis.
fn series(runs: &[(String, Report)]) -> Vec<Series> {
    let mut all: Vec<Series> = Vec::new();
    for (run, report) in runs {
        let names: Vec<_> = report.results.iter().map(|row| label(run, report, row)).collect();
        let mut distinct = names.clone();
        distinct.dedup();
        for name in distinct {
            let colour = COLOURS[all.iter().filter(|s| !s.dashed).count() % COLOURS.len()];
            let rows = || report.results.iter().zip(&names).filter(|(r, n)| **n == name && r.size > 0);
            for dashed in [false, true] {
                let point = |(row, _): (&Row, _)| {
                    let t = if dashed { row.in_place.as_ref()? } else { &row.out_of_place };
                    Some((row.size as f64, t.time, t.bus_bw))
                };
                let place = if dashed { "in place" } else { "out of place" };
                let points: Vec<_> = rows().filter_map(point).collect();
                if dashed && points.is_empty() {
                    continue;
                }
                all.push(Series { name: format!("{name}, {place}"), colour, dashed, points });
            }
        }
    }
    all
}

fn label(run: &str, report: &Report, row: &Row) -> String {
    let operator = if row.redop == "none" { String::new() } else { format!(" {}", row.redop) };
    let root = if row.root < 0 { String::new() } else { format!(", root {}", row.root) };
    let ranks = report.config.nranks;
    format!("{run}: {}, {ranks} ranks, {}{operator}{root}", row.experiment_name, row.dtype)
}

/// Where values lie between the two ends of an axis, and what is written beside it.
struct Axis {
    low: f64,
    high: f64,
    logarithmic: bool,
    ticks: Vec<(f64, String)>,
}

impl Axis {
    fn powers_of_two((low, high): (f64, f64)) -> Axis {
        let (first, last) =
            (low.log2().floor() as i32, (high.log2().ceil() as i32).max(low.log2().floor() as i32 + 1));
        let every = ((last - first) as usize).div_ceil(12).max(1);
        let ticks =
            (first..=last).step_by(every).map(|p| (2f64.powi(p), short(2f64.powi(p) as u64))).collect();
        Axis { low: 2f64.powi(first), high: 2f64.powi(last), logarithmic: true, ticks }
    }

    fn logarithmic((low, high): (f64, f64)) -> Axis {
        let first = low.log10().floor() as i32;
        let last = (high.log10().ceil() as i32).max(first + 1);
        let ticks = (first..=last).map(|p| (10f64.powi(p), plain(10f64.powi(p)))).collect();
        Axis { low: 10f64.powi(first), high: 10f64.powi(last), logarithmic: true, ticks }
    }

    fn linear(high: f64) -> Axis {
        let power = 10f64.powf((high / 5.0).log10().floor());
        let unit = [1.0, 2.0, 5.0, 10.0].map(|m| m * power).into_iter().find(|u| u * 5.0 >= high);
        let unit = unit.unwrap_or(power);
        let ticks = (0..=5).map(|i| (f64::from(i) * unit, plain(f64::from(i) * unit))).collect();
        Axis { low: 0.0, high: 5.0 * unit, logarithmic: false, ticks }
    }

    /// From 0 at the low end to 1 at the high end.
    fn at(&self, value: f64) -> f64 {
        if self.logarithmic {
            return (value.max(self.low) / self.low).ln() / (self.high / self.low).ln();
        }
        (value - self.low) / (self.high - self.low)
    }
}

/// The least and the largest positive value; something drawable where there is none.
fn span(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let positive = values.filter(|v| v.is_finite() && *v > 0.0);
    let (low, high) = positive.fold((f64::INFINITY, 0.0), |(l, h): (f64, f64), v| (l.min(v), h.max(v)));
    if high == 0.0 { (1.0, 1.0) } else { (low, high) }
}

fn plain(value: f64) -> String {
    let text = format!("{value:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_string()
}

fn panel(
    out: &mut String,
    left: f64,
    title: &str,
    x: &Axis,
    y: &Axis,
    series: &[Series],
    value: impl Fn(&(f64, f64, f64)) -> f64,
) {
    let (right, bottom) = (left + PANEL_WIDTH, TOP + PANEL_HEIGHT);
    let across = |v: f64| left + PANEL_WIDTH * x.at(v);
    let up = |v: f64| bottom - PANEL_HEIGHT * y.at(v);
    let middle = left + PANEL_WIDTH / 2.0;
    let _ =
        writeln!(out, "<text x=\"{middle}\" y=\"30\" text-anchor=\"middle\" font-size=\"16\">{title}</text>");
    for (v, name) in &y.ticks {
        let h = up(*v);
        let _ = writeln!(
            out,
            "<path d=\"M{left} {h:.1}H{right}\" stroke=\"#ddd\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{name}</text>",
            left - 8.0,
            h + 4.0
        );
    }
    for (v, name) in &x.ticks {
        let w = across(*v);
        let _ = writeln!(
            out,
            "<path d=\"M{w:.1} {TOP}V{bottom}\" stroke=\"#eee\"/>\
             <text x=\"{w:.1}\" y=\"{}\" text-anchor=\"middle\">{name}</text>",
            bottom + 20.0
        );
    }
    let _ = writeln!(
        out,
        "<rect x=\"{left}\" y=\"{TOP}\" width=\"{PANEL_WIDTH}\" height=\"{PANEL_HEIGHT}\" fill=\"none\" stroke=\"#333\"/>\
         <text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\">Size (bytes)</text>",
        bottom + 42.0
    );
    for s in series {
        let mut line = String::new();
        for point in &s.points {
            let step = if line.is_empty() { 'M' } else { 'L' };
            let _ = write!(line, "{step}{:.1} {:.1}", across(point.0), up(value(point)));
        }
        let dash = if s.dashed { " stroke-dasharray=\"6 4\"" } else { "" };
        let _ = writeln!(
            out,
            "<path d=\"{line}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"{dash}/>",
            s.colour
        );
        for point in s.points.iter().filter(|_| !s.dashed) {
            let _ = write!(
                out,
                "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\" fill=\"{}\"/>",
                across(point.0),
                up(value(point)),
                s.colour
            );
        }
        out.push('\n');
    }
}

fn legend(out: &mut String, series: &[Series]) {
    for (i, s) in series.iter().enumerate() {
        let y = TOP + PANEL_HEIGHT + 75.0 + 20.0 * i as f64;
        let dash = if s.dashed { " stroke-dasharray=\"6 4\"" } else { "" };
        let name = s.name.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        let _ = writeln!(
            out,
            "<path d=\"M80 {y}H120\" stroke=\"{}\" stroke-width=\"2\"{dash}/><text x=\"130\" y=\"{}\">{name}</text>",
            s.colour,
            y + 4.0
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::sample;

    /// Every tag that opens closes, in order, and nothing stands outside the root.
    fn well_formed(text: &str) -> Result<(), String> {
        let mut open: Vec<&str> = Vec::new();
        let mut rest = text;
        while let Some(start) = rest.find('<') {
            let end = rest[start..].find('>').ok_or("a tag does not end")? + start;
            let tag = &rest[start + 1..end];
            if !tag.matches('"').count().is_multiple_of(2) || tag.contains('<') {
                return Err(format!("bad attributes in {tag}"));
            }
            let name = tag.trim_start_matches('/').split([' ', '/']).next().unwrap_or_default();
            if tag.starts_with('/') {
                if open.pop() != Some(name) {
                    return Err(format!("{name} closes what is not open"));
                }
            } else if !tag.ends_with('/') {
                open.push(name);
            }
            if rest[..start].contains('&') && !rest[..start].contains(';') {
                return Err("a bare ampersand".into());
            }
            rest = &rest[end + 1..];
        }
        if open.is_empty() && rest.trim().is_empty() { Ok(()) } else { Err(format!("left open: {open:?}")) }
    }

    #[test]
    fn several_runs_give_one_well_formed_picture() {
        let picture = svg(&[("a<b&c".into(), sample()), ("second".into(), sample())]);
        well_formed(&picture).unwrap();
        assert!(picture.contains("a&lt;b&amp;c: all_reduce_perf, 2 ranks, float sum, out of place"));
        assert_eq!(
            picture.matches("stroke-width").count(),
            4 * 2 + 4,
            "four lines in each panel and the legend"
        );
        assert!(!picture.contains("NaN") && !picture.contains("inf"));
        assert!(well_formed("<a><b></a>").is_err());
    }

    #[test]
    fn what_has_no_in_place_form_has_one_line() {
        let mut report = sample();
        report.results.iter_mut().for_each(|row| row.in_place = None);
        let picture = svg(&[("a".into(), report), ("b".into(), sample())]);
        well_formed(&picture).unwrap();
        assert_eq!((picture.matches("in place").count(), picture.matches("out of place").count()), (1, 2));
        assert!(picture.contains(COLOURS[1]), "each run has a colour of its own");
    }

    #[test]
    fn empty_and_single_point_runs_still_draw() {
        for rows in [0, 1] {
            let mut report = sample();
            report.results.truncate(rows);
            let picture = svg(&[("x".into(), report)]);
            well_formed(&picture).unwrap();
            assert!(!picture.contains("NaN"), "{picture}");
        }
    }

    #[test]
    fn points_lie_on_their_axes() {
        let axis = Axis::logarithmic((1.2, 900.0));
        assert_eq!((axis.at(1.0), axis.at(1000.0)), (0.0, 1.0));
        let axis = Axis::linear(7.3);
        assert_eq!((axis.high, axis.at(5.0)), (10.0, 0.5));
        assert_eq!(Axis::powers_of_two((8.0, 8.0)).ticks.len(), 2);
    }
}
