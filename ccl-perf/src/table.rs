//! nccl-tests' table, column for column: many scripts read it.

use crate::Program;
use crate::options::{Options, Place};
use crate::report::{Device, Row, Spread, Timing};
use crate::sizes::Step;
use ccl::Explanation;
use std::fmt::Write as _;

/// The lines above the table: what runs, and who takes part.
pub(crate) fn preamble(program: Program, options: &Options, devices: &[Device]) -> String {
    let processes = devices.len() as u32 / options.threads;
    let mut out = format!(
        "# rdmaccl-tests version {}\n# Collective test starting: {}\n# nThread {} nGpus {processes} ",
        env!("CARGO_PKG_VERSION"),
        program.name(),
        options.threads,
    );
    if program.moves_data() {
        let (step, kind) = match options.step() {
            Step::Times(factor) => (factor, "factor"),
            Step::Add(bytes) => (bytes, "bytes"),
        };
        let _ = write!(out, "minBytes {} maxBytes {} step: {step}({kind}) ", options.min, options.max);
    }
    let _ = writeln!(
        out,
        "warmup iters: {} iters: {} agg iters: {} validation: {} graph: 0 unalign: {}\n#",
        options.warmup, options.iterations, options.aggregate, options.check, options.unalign,
    );
    let unused = options.without_effect();
    if !unused.is_empty() {
        let _ = writeln!(out, "# Without effect on host memory: {}", unused.join(" "));
    }
    if options.memory == Place::Device {
        out.push_str("# Buffers on CUDA devices: by kernels where they reach each other, else through pinned host memory\n");
    }
    out.push_str("# Using devices\n");
    for d in devices {
        let _ = writeln!(
            out,
            "#  Rank {:2} Group  0 Pid {:6} on {:>10} device {:2} [{}] {}",
            d.rank, d.pid, d.hostname, d.device, d.bus, d.device_info
        );
    }
    out
}

/// What was chosen for a row, and its time in microseconds against the one that was predicted.
pub(crate) fn explanation(in_place: bool, plan: &Explanation, time: f64) -> String {
    let predicted = plan.predicted_ns / 1e3;
    let threads = if plan.threads > 1 { format!(" on {} threads", plan.threads) } else { String::new() };
    format!(
        "#   {}: {}, {} tiles of {} bytes{threads}, predicted {predicted:.2} us, measured {time:.2} us, ratio {:.2}\n",
        place(in_place),
        plan.algorithm,
        plan.tiles,
        plan.tile_bytes,
        time / predicted,
    )
}

/// Whether the two buffers are one, in words.
pub(crate) fn place(in_place: bool) -> &'static str {
    if in_place { "in place" } else { "out of place" }
}

/// The names of the columns and their units.
pub(crate) fn header(program: Program, options: &Options) -> String {
    if program.moves_data() { data_header(options) } else { barrier_header(options) }
}

fn barrier_header(options: &Options) -> String {
    let line = |ranks: &str, time: &str, wrong: &str, spread: [&str; 4], stamp: &str| {
        let mut text = format!("# {ranks:>10}  {time:>7}  {wrong:>6}");
        if options.per_iteration {
            for name in spread {
                let _ = write!(text, "  {name:>7}");
            }
        }
        if options.timestamps {
            let _ = write!(text, "{stamp:>21}");
        }
        text + "\n"
    };
    let names = line("ranks", "time", "#wrong", ["i_min", "i_max", "i_p99", "i_cv%"], "timestamp");
    let units = line("", "(us)", "", ["(us)", "(us)", "(us)", "(%)"], "(UTC)");
    format!("#\n{names}{units}")
}

fn data_header(options: &Options) -> String {
    let stamp = |text: &str| if options.timestamps { format!("{text:>21}") } else { String::new() };
    let lead = |size: &str, count: &str, t: &str, op: &str, root: &str| {
        format!("# {size:>10}  {count:>12}  {t:>8}  {op:>6}  {root:>6}")
    };
    let group = |names: [&str; 8]| {
        let [time, alg, bus, wrong, spread @ ..] = names;
        let mut text = format!("  {time:>7}  {alg:>6}  {bus:>6}  {wrong:>6}");
        if options.per_iteration {
            for name in spread {
                let _ = write!(text, "  {name:>7}");
            }
        }
        text
    };
    let names = group(["time", "algbw", "busbw", "#wrong", "i_min", "i_max", "i_p99", "i_cv%"]);
    let units = group(["(us)", "(GB/s)", "(GB/s)", "", "(us)", "(us)", "(us)", "(%)"]);
    let (out_of_place, in_place) = match options.per_iteration {
        false => ("           out-of-place            ", "           in-place          "),
        true => (
            "              out-of-place (+ per-iteration)                    ",
            "            in-place (+ per-iteration)",
        ),
    };
    format!(
        "#\n{}{out_of_place}{in_place}\n{}{names}{names}{}\n{}{units}{units}{}\n",
        lead("", "", "", "", ""),
        lead("size", "count", "type", "redop", "root"),
        stamp("timestamp"),
        lead("(B)", "(elements)", "", "", ""),
        stamp("(UTC)"),
    )
}

/// One line.
pub(crate) fn row(row: &Row, timestamp: Option<&str>) -> String {
    let mut out =
        format!("{:>12}  {:>12}  {:>8}  {:>6}  {:>6}", row.size, row.count, row.dtype, row.redop, row.root);
    out.push_str(&timing(&row.out_of_place, row.out_of_place_per_iter.as_ref()));
    match &row.in_place {
        Some(in_place) => out.push_str(&timing(in_place, row.in_place_per_iter.as_ref())),
        None => {
            let widths: &[usize] = if row.out_of_place_per_iter.is_some() { &[7; 4] } else { &[] };
            for width in [7, 6, 6, 6].iter().chain(widths) {
                let _ = write!(out, "  {:>width$}", "N/A");
            }
        }
    }
    ended(out, timestamp)
}

/// One line of a program that moves no data.
pub(crate) fn barrier_row(row: &Row, ranks: u32, timestamp: Option<&str>) -> String {
    let Timing { time, nwrong, .. } = row.out_of_place;
    let mut out = format!("{ranks:>12}  {}  {:>6}", fitted(time, 7), count(nwrong));
    out.push_str(&spread(row.out_of_place_per_iter.as_ref()));
    ended(out, timestamp)
}

fn ended(mut line: String, timestamp: Option<&str>) -> String {
    if let Some(stamp) = timestamp {
        let _ = write!(line, "{stamp:>21}");
    }
    line + "\n"
}

fn count(wrong: Option<u64>) -> String {
    wrong.map_or_else(|| "N/A".to_string(), |n| n.to_string())
}

fn spread(spread: Option<&Spread>) -> String {
    let values = spread.into_iter().flat_map(|s| [s.min_us, s.max_us, s.p99_us, s.cv_pct]);
    values.map(|value| format!("  {}", fitted(value, 7))).collect()
}

fn timing(t: &Timing, per_iteration: Option<&Spread>) -> String {
    format!(
        "  {}  {}  {}  {:>6}{}",
        fitted(t.time, 7),
        fitted(t.alg_bw, 6),
        fitted(t.bus_bw, 6),
        count(t.nwrong),
        spread(per_iteration)
    )
}

/// The lines under the table. The average is that of the bus bandwidth in GB/s, of a barrier that of the time
/// in microseconds.
pub(crate) fn footer(program: Program, wrong: u64, average: f64) -> String {
    let verdict = if wrong == 0 { "OK" } else { "FAILED" };
    let average = match program.moves_data() {
        true => format!("# Avg bus bandwidth    : {} ", six_digits(average)),
        false => format!("# Avg latency (us)     : {} ", six_digits(average)),
    };
    format!(
        "# Out of bounds values : {wrong} {verdict}\n{average}\n#\n# Collective test concluded: {}\n#\n",
        program.name()
    )
}

/// A number in `width` columns with as many of two decimals as fit.
fn fitted(value: f64, width: usize) -> String {
    let mut digits = 0;
    let mut limit = 1.0;
    while value >= limit && digits <= width {
        digits += 1;
        limit *= 10.0;
    }
    if digits + 2 < width {
        format!("{value:width$.2}")
    } else if digits + 1 < width {
        format!("{value:width$.1}")
    } else if digits <= width {
        format!("{value:width$.0}")
    } else {
        format!("{value:width$.1e}")
    }
}

/// C's `%g`: six significant digits, no zeros at the end.
fn six_digits(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return format!("{value}");
    }
    let power = value.abs().log10().floor() as i32;
    if !(-4..6).contains(&power) {
        return format!("{value:.5e}");
    }
    let text = format!("{value:.*}", (5 - power) as usize);
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_string() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::sample;
    use ccl::Collective;
    use clap::Parser;

    #[test]
    fn the_layout_is_that_of_nccl_tests() {
        let options = Options::parse_from(["perf"]);
        let program = Program::from(Collective::AllReduce);
        let mut text = header(program, &options);
        text.push_str(&row(&Row { out_of_place_per_iter: None, ..sample().results[2].clone() }, None));
        text.push_str(&footer(program, 0, 12.345678));
        assert_eq!(
            text,
            "\
#
#                                                              out-of-place                       in-place          
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)        
     1048576        262144     float     sum      -1   250.00    4.19    1.50       0   250.00    4.19    1.50     N/A
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 12.3457 
#
# Collective test concluded: all_reduce_perf
#
"
        );
    }

    #[test]
    fn rows_are_as_wide_as_their_header() {
        for words in [vec!["perf"], vec!["perf", "-S", "1"], vec!["perf", "-I"]] {
            let options = Options::parse_from(words);
            let header = header(Collective::AllReduce.into(), &options);
            let names = header.lines().nth(2).unwrap();
            let stamp = options.timestamps.then_some("2026-01-31 23:59:59");
            let mut line = sample().results[0].clone();
            line.in_place_per_iter = line.out_of_place_per_iter.clone();
            if !options.per_iteration {
                (line.in_place_per_iter, line.out_of_place_per_iter) = (None, None);
            }
            assert_eq!(row(&line, stamp).trim_end().len(), names.len(), "{names}");
            (line.in_place, line.in_place_per_iter) = (None, None);
            assert_eq!(row(&line, stamp).trim_end().len(), names.len(), "{names}");

            let header = super::header(Program::Barrier, &options);
            let names = header.lines().nth(1).unwrap();
            assert_eq!(barrier_row(&line, 4, stamp).trim_end().len(), names.len(), "{names}");
        }
    }

    #[test]
    fn wrong_data_reads_failed() {
        assert!(footer(Program::Barrier, 3, 0.0).starts_with("# Out of bounds values : 3 FAILED\n"));
    }

    #[test]
    fn numbers_fit_their_column() {
        let shown = [0.0, 9.999, 9999.99, 99999.9, 123456.7, 1234567.0, 3e9].map(|v| fitted(v, 7));
        assert_eq!(shown, ["   0.00", "  10.00", "9999.99", "99999.9", " 123457", "1234567", "  3.0e9"]);
        assert_eq!(
            [0.5, 1e-5, 123456.0, 1e7, 100.0].map(six_digits),
            ["0.5", "1.00000e-5", "123456", "1.00000e7", "100"]
        );
    }
}
