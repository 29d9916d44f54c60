//! What a run measured, as JSON and CSV. The keys are nccl-tests'.

use serde::{Deserialize, Serialize};
use std::fmt::Write as _;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// A whole run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Report {
    /// Of this layout.
    pub(crate) version: u32,
    /// UTC, `2026-01-31 23:59:59`.
    pub(crate) start_time: String,
    /// The command line.
    pub(crate) args: Vec<String>,
    /// Of the library.
    pub(crate) rdmaccl_version: String,
    /// What was asked for.
    pub(crate) config: RunConfig,
    /// One per size, type, operator and root.
    pub(crate) results: Vec<Row>,
    /// Wrong elements in all.
    pub(crate) out_of_bounds: OutOfBounds,
    /// The mean over all rows and both placements.
    pub(crate) average_bus_bandwidth: Average,
    /// UTC.
    pub(crate) end_time: String,
}

/// What was asked for, and of whom.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct RunConfig {
    /// Threads per process.
    pub(crate) nthreads: u32,
    /// Ranks in all.
    pub(crate) nranks: u32,
    /// First size in bytes.
    pub(crate) minimum_bytes: u64,
    /// Last size in bytes.
    pub(crate) maximum_bytes: u64,
    /// Before every size.
    pub(crate) warmup_iters: u32,
    /// Timed.
    pub(crate) iterations: u32,
    /// Calls in one iteration.
    pub(crate) aggregated_iterations: u32,
    /// Checked calls per size and placement.
    pub(crate) validation: u32,
    /// The forced algorithm.
    pub(crate) algorithm: Option<String>,
    /// Who took part.
    pub(crate) devices: Vec<Device>,
}

/// A rank and where it runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Device {
    /// Its number.
    pub(crate) rank: u32,
    /// Its process.
    pub(crate) pid: u32,
    /// Its host.
    pub(crate) hostname: String,
    /// The number of what holds its buffers.
    pub(crate) device: u32,
    /// Where that is: a place on the bus, or the host.
    pub(crate) bus: String,
    /// Its name: the GPU's, or the host's processor.
    pub(crate) device_info: String,
}

/// One line of the table.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Row {
    /// Bytes.
    pub(crate) size: u64,
    /// Elements of one block.
    pub(crate) count: u64,
    /// Data type.
    #[serde(rename = "type")]
    pub(crate) dtype: String,
    /// Operator, or `none`.
    pub(crate) redop: String,
    /// Root, or -1.
    pub(crate) root: i64,
    /// Separate buffers.
    pub(crate) out_of_place: Timing,
    /// One buffer; none where the call has no such form.
    pub(crate) in_place: Option<Timing>,
    /// With `-I`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) out_of_place_per_iter: Option<Spread>,
    /// With `-I`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) in_place_per_iter: Option<Spread>,
    /// Timed iterations.
    pub(crate) actual_iterations: u32,
    /// The program: `all_reduce_perf`.
    pub(crate) experiment_name: String,
    /// What ran.
    pub(crate) algorithm: String,
}

/// What one placement of one size took.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Timing {
    /// Microseconds of one call.
    pub(crate) time: f64,
    /// Size over time, GB/s.
    pub(crate) alg_bw: f64,
    /// What the links carry, GB/s.
    pub(crate) bus_bw: f64,
    /// Wrong elements over all ranks; none where nothing was checked.
    pub(crate) nwrong: Option<u64>,
}

/// How the iterations of one size differ, in microseconds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Spread {
    /// Shortest.
    pub(crate) min_us: f64,
    /// Longest.
    pub(crate) max_us: f64,
    /// Mean.
    pub(crate) avg_us: f64,
    /// Median.
    pub p50_us: f64,
    /// 95th percentile.
    pub p95_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// Standard deviation.
    pub(crate) stdev_us: f64,
    /// The same in per cent of the mean.
    pub(crate) cv_pct: f64,
    /// Every iteration, in order.
    pub(crate) times_us: Vec<f64>,
}

/// Wrong elements of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct OutOfBounds {
    /// How many.
    pub(crate) count: u64,
    /// Whether there were none.
    pub(crate) okay: bool,
}

/// Bus bandwidth over all rows.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Average {
    /// GB/s.
    pub(crate) bandwidth: f64,
}

impl Spread {
    /// Of at least one time.
    pub(crate) fn of(times_us: Vec<f64>) -> Spread {
        let mut sorted = times_us.clone();
        sorted.sort_by(f64::total_cmp);
        let n = sorted.len();
        let percentile = |p: usize| sorted[(n * p).div_ceil(100).max(1) - 1];
        let avg_us = sorted.iter().sum::<f64>() / n as f64;
        let stdev_us = (sorted.iter().map(|t| (t - avg_us).powi(2)).sum::<f64>() / n as f64).sqrt();
        Spread {
            min_us: sorted[0],
            max_us: sorted[n - 1],
            avg_us,
            p50_us: percentile(50),
            p95_us: percentile(95),
            p99_us: percentile(99),
            stdev_us,
            cv_pct: if avg_us > 0.0 { 100.0 * stdev_us / avg_us } else { 0.0 },
            times_us,
        }
    }
}

impl Report {
    /// Reads a report that this crate or nccl-tests' layout wrote.
    pub(crate) fn load(path: &Path) -> Result<Report, String> {
        let text =
            std::fs::read_to_string(path).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
        serde_json::from_str(&text).map_err(|e| format!("{} is no report of a -J run: {e}", path.display()))
    }

    /// Writes it as JSON.
    pub(crate) fn save(&self, path: &Path) -> Result<(), String> {
        let text = serde_json::to_string_pretty(self).map_err(|e| format!("cannot write JSON: {e}"))?;
        write(path, &(text + "\n"))
    }

    /// The rows as comma-separated values under a line of names.
    pub(crate) fn csv(&self) -> String {
        let mut out = String::from(
            "size,count,type,redop,root,algorithm,out_of_place_us,out_of_place_algbw,out_of_place_busbw,\
             out_of_place_wrong,in_place_us,in_place_algbw,in_place_busbw,in_place_wrong\n",
        );
        for row in &self.results {
            let _ = write!(
                out,
                "{},{},{},{},{},{}",
                row.size, row.count, row.dtype, row.redop, row.root, row.algorithm
            );
            for t in [Some(&row.out_of_place), row.in_place.as_ref()] {
                let Some(t) = t else {
                    out.push_str(",,,,");
                    continue;
                };
                let wrong = t.nwrong.map_or_else(String::new, |n| n.to_string());
                let _ = write!(out, ",{:.3},{:.4},{:.4},{wrong}", t.time, t.alg_bw, t.bus_bw);
            }
            out.push('\n');
        }
        out
    }
}

/// Writes a whole file, with an error that names it.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), String> {
    std::fs::write(path, text).map_err(|e| format!("cannot write {}: {e}", path.display()))
}

/// The time of day in UTC: `2026-01-31 23:59:59`.
pub(crate) fn now() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    date(seconds)
}

/// Seconds since 1970 as a date, by counting whole years and months.
fn date(seconds: u64) -> String {
    let (mut days, of_day) = (seconds / 86_400, seconds % 86_400);
    let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let mut year = 1970;
    while days >= 365 + u64::from(leap(year)) {
        days -= 365 + u64::from(leap(year));
        year += 1;
    }
    let lengths = [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while days >= lengths[month] {
        days -= lengths[month];
        month += 1;
    }
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{:02}-{:02} {hour:02}:{minute:02}:{second:02}", month + 1, days + 1)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A report to test readers with.
    pub(crate) fn sample() -> Report {
        let row = |size: u64, time: f64| {
            let timing = Timing { time, alg_bw: size as f64 / time / 1e3, bus_bw: 1.5, nwrong: Some(0) };
            Row {
                size,
                count: size / 4,
                dtype: "float".into(),
                redop: "sum".into(),
                root: -1,
                in_place: Some(Timing { nwrong: None, ..timing.clone() }),
                out_of_place: timing,
                out_of_place_per_iter: Some(Spread::of(vec![1.0, 2.0])),
                in_place_per_iter: None,
                actual_iterations: 20,
                experiment_name: "all_reduce_perf".into(),
                algorithm: "ring".into(),
            }
        };
        Report {
            version: 2,
            start_time: date(0),
            args: vec!["all_reduce_perf".into()],
            rdmaccl_version: "0.1.0".into(),
            config: RunConfig {
                nthreads: 1,
                nranks: 2,
                minimum_bytes: 8,
                maximum_bytes: 1 << 20,
                warmup_iters: 5,
                iterations: 20,
                aggregated_iterations: 1,
                validation: 1,
                algorithm: None,
                devices: vec![Device {
                    rank: 0,
                    pid: 7,
                    hostname: "a<b&c".into(),
                    device: 0,
                    bus: "host".into(),
                    device_info: "cpu".into(),
                }],
            },
            results: vec![row(8, 1.25), row(1024, 2.5), row(1 << 20, 250.0)],
            out_of_bounds: OutOfBounds { count: 0, okay: true },
            average_bus_bandwidth: Average { bandwidth: 1.5 },
            end_time: date(1),
        }
    }

    #[test]
    fn a_report_survives_json() {
        let text = serde_json::to_string(&sample()).unwrap();
        let back: Report = serde_json::from_str(&text).unwrap();
        assert_eq!(serde_json::to_string(&back).unwrap(), text);
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["results"][0]["out_of_place"]["nwrong"], 0);
        assert!(value["results"][0]["in_place"]["nwrong"].is_null());
    }

    #[test]
    fn csv_has_one_line_per_row_and_equal_columns() {
        let mut report = sample();
        report.results[1].in_place = None;
        let csv = report.csv();
        let columns: Vec<_> = csv.lines().map(|line| line.split(',').count()).collect();
        assert_eq!(columns, [14; 4]);
    }

    #[test]
    fn percentiles_are_values_that_occurred() {
        let spread = Spread::of((1..=200).rev().map(f64::from).collect());
        assert_eq!(
            (spread.min_us, spread.p50_us, spread.p95_us, spread.p99_us, spread.max_us),
            (1.0, 100.0, 190.0, 198.0, 200.0)
        );
        assert_eq!(spread.times_us[0], 200.0);
        assert_eq!(Spread::of(vec![3.0]).p99_us, 3.0);
    }

    #[test]
    fn dates_are_counted_right() {
        assert_eq!(date(0), "1970-01-01 00:00:00");
        assert_eq!(date(951_827_696), "2000-02-29 12:34:56");
        assert_eq!(date(4_102_444_799), "2099-12-31 23:59:59");
    }
}
