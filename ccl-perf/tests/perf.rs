//! The programs as users start them: real processes, checked data, exit statuses, and nothing left behind.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

const PROGRAMS: [&str; 10] = [
    "all_reduce_perf",
    "all_gather_perf",
    "reduce_scatter_perf",
    "broadcast_perf",
    "reduce_perf",
    "alltoall_perf",
    "gather_perf",
    "scatter_perf",
    "alltoallv_perf",
    SENDRECV,
];
/// Programs by whether they reduce, and whether they have a root.
const KINDS: [(bool, bool); 10] = [
    (true, false),
    (false, false),
    (true, false),
    (false, true),
    (true, true),
    (false, false),
    (false, true),
    (false, true),
    (false, false),
    (false, false),
];
/// A rank cannot receive into what it still sends, so that it has no in-place form.
const SENDRECV: &str = "sendrecv_perf";
const BARRIER: &str = "barrier_perf";
const ALL_REDUCE: &str = PROGRAMS[0];

/// A program with its options, in an environment without a launcher's variables.
fn program(name: &str, line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_all_reduce_perf"));
    command
        .arg0(name)
        .args(line.split_whitespace())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    for name in
        ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "RDMACCL_RANK", "RDMACCL_SIZE", "RDMACCL_ID"]
    {
        command.env_remove(name);
    }
    command
}

fn run(name: &str, line: &str) -> (Output, String) {
    let output = program(name, line).output().unwrap();
    let table = String::from_utf8(output.stdout.clone()).unwrap();
    (output, table)
}

/// Data rows, without the lines that begin with '#'.
fn rows(table: &str) -> Vec<Vec<&str>> {
    let lines = table.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| line.split_whitespace().collect()).collect()
}

fn assert_right(name: &str, line: &str, expected_rows: usize) {
    let (output, table) = run(name, line);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name} {line}: {}\n{table}\n{said}", output.status);
    assert!(table.contains("# Out of bounds values : 0 OK"), "{name} {line}:\n{table}");
    let rows = rows(&table);
    assert_eq!(rows.len(), expected_rows, "{table}");
    for row in rows {
        let in_place = if name == SENDRECV { "N/A" } else { "0" };
        assert_eq!((row.len(), row[8], row[12]), (13, "0", in_place), "{table}");
    }
}

/// A folder of this test alone.
fn folder(test: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// Processes that run the program with this mark in their arguments.
fn processes(mark: &str) -> Vec<i32> {
    let alive = |pid: &i32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(mark) && !status.contains("State:\tZ")
    };
    let entries = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    entries.filter_map(|e| e.file_name().to_string_lossy().parse().ok()).filter(alive).collect()
}

/// Asks until the condition holds; fails after a time that is far beyond any honest run.
fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(20), "{what}: not within 20 s");
        std::thread::yield_now();
    }
}

fn signal(name: &str, pid: i32) {
    // The shell's own: minimal systems have no program of that name.
    assert!(Command::new("sh").args(["-c", &format!("kill {name} {pid}")]).status().unwrap().success());
}

#[test]
fn every_program_is_right_between_processes() {
    for name in PROGRAMS {
        for ranks in [2, 3, 4] {
            assert_right(name, &format!("-g {ranks} -b 4 -e 70000 -f 7 -n 2 -w 1"), 6);
        }
    }
}

/// Over sockets alone, and over sockets and shared memory at once.
#[test]
fn every_program_is_right_between_hosts() {
    for name in PROGRAMS {
        for ranks in ["-g 2 --hosts 2", "-g 3 --hosts 3", "-g 4 --hosts 2", "-g 1 -t 5 --hosts 2"] {
            assert_right(name, &format!("{ranks} -b 4 -e 700000 -f 7 -n 2 -w 1"), 7);
        }
    }
}

#[test]
fn every_program_is_right_between_threads_for_all_types_and_operators() {
    for (name, (reduces, rooted)) in PROGRAMS.into_iter().zip(KINDS) {
        // Six operators on 14 types, and three of bits on the eight of integers.
        let (operators, roots) = (if reduces { 14 * 6 + 8 * 3 } else { 14 }, if rooted { 3 } else { 1 });
        assert_right(name, "-t 3 -b 1 -e 1000 -f 31 -n 1 -w 0 -d all -o all -r -1", 3 * operators * roots);
    }
}

#[test]
fn processes_of_several_threads_and_one_rank_alone_work() {
    assert_right(ALL_REDUCE, "-g 2 -t 2 -b 8 -e 8K -f 4 -n 2", 6);
    assert_right(ALL_REDUCE, "-g 1 -b 8 -e 8K -f 4 -n 2", 6);
    assert_right(ALL_REDUCE, "-g 3 -b 1001 -e 1001 -d int8 -u 3 -n 2 -m 2 -a 3 -c 4", 1);
}

#[test]
fn a_barrier_holds_everybody_back_and_has_a_table_of_its_own() {
    for ranks in ["-g 4", "-t 3", "-g 2 -t 2"] {
        let (output, table) = run(BARRIER, &format!("{ranks} -n 20 -c 5 -N 2"));
        assert!(output.status.success(), "{table}");
        assert!(
            table.contains("# Out of bounds values : 0 OK") && table.contains("# Avg latency (us)"),
            "{table}"
        );
        let rows = rows(&table);
        assert_eq!(rows.len(), 2, "{table}");
        assert!(rows.iter().all(|row| row.len() == 3 && row[2] == "0"), "{table}");
    }
    let (output, _) = run(BARRIER, "-g 2 -b 8");
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("a barrier moves none"));
}

#[test]
fn without_checking_the_column_says_so() {
    let (output, table) = run(ALL_REDUCE, "-g 2 -b 8 -e 8 -c 0 -n 1");
    assert!(output.status.success());
    let rows = rows(&table);
    assert_eq!((rows[0][8], rows[0][12]), ("N/A", "N/A"), "{table}");
}

#[test]
fn reports_are_written_and_drawn() {
    let folder = folder("reports");
    let at = |name: &str| folder.join(name).display().to_string();
    let (json, csv, svg, both) = (at("a.json"), at("a.csv"), at("a.svg"), at("both.svg"));
    let line = format!("-g 2 -b 8 -e 2K -f 4 -n 3 -I -J {json} --csv {csv} --plot {svg}");
    let (output, table) = run(ALL_REDUCE, &line);
    assert!(output.status.success(), "{table}");

    let report: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    let results = report["results"].as_array().unwrap();
    assert_eq!(results.len(), 5);
    assert_eq!(report["config"]["devices"].as_array().unwrap().len(), 2);
    for row in results {
        assert_eq!(row["out_of_place"]["nwrong"], 0);
        assert!(row["in_place"]["time"].as_f64().unwrap() > 0.0);
        assert_eq!(row["in_place_per_iter"]["times_us"].as_array().unwrap().len(), 3);
    }
    assert_eq!(std::fs::read_to_string(&csv).unwrap().lines().count(), 6);
    assert!(std::fs::read_to_string(&svg).unwrap().starts_with("<svg"));

    let (output, nothing) = run(ALL_REDUCE, &format!("--plot {both} {json} {json}"));
    assert!(output.status.success() && nothing.is_empty());
    assert!(std::fs::read_to_string(&both).unwrap().contains("in place"));
}

#[test]
fn bad_options_and_bad_roots_are_errors() {
    assert_eq!(run(ALL_REDUCE, "-b 64 -e 8").0.status.code(), Some(2));
    assert_eq!(run(ALL_REDUCE, "-G 1").0.status.code(), Some(2));
    let (output, _) = run(PROGRAMS[3], "-g 2 -r 2 -b 8 -e 8");
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("ranks are 0 to 1"));
}

#[test]
fn a_killed_rank_ends_everything_and_is_named() {
    // The size is the mark by which this test's processes are found.
    for (size, hosts) in [("7340048", 1), ("7340056", 3)] {
        let line = format!("-g 3 --hosts {hosts} -b {size} -e {size} -N 0 -n 5");
        let launcher = program(ALL_REDUCE, &line).spawn().unwrap();
        let own = i32::try_from(launcher.id()).unwrap();
        let ranks = || processes(size).into_iter().filter(|&pid| pid != own).collect::<Vec<_>>();
        eventually("three ranks", || ranks().len() == 3);
        let victim = *ranks().iter().max().unwrap();
        signal("-KILL", victim);
        let output = launcher.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(&format!("(pid {victim}) was killed by signal 9 (SIGKILL)")), "{said}");
        assert!(processes(size).is_empty());
    }
}

#[test]
fn a_killed_launcher_leaves_nobody() {
    let mut launcher = program(ALL_REDUCE, "-g 3 -b 7340052 -e 7340052 -N 0 -n 5").spawn().unwrap();
    eventually("three ranks", || processes("7340052").len() == 4);
    signal("-KILL", i32::try_from(launcher.id()).unwrap());
    launcher.wait().unwrap();
    eventually("all ranks ended", || processes("7340052").is_empty());
}

#[test]
fn under_torchruns_variables_it_joins() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let ranks: Vec<_> = (0..2)
        .map(|rank| {
            let mut command = program(ALL_REDUCE, "-b 8 -e 128 -f 4 -n 2");
            let variables =
                [("RANK", rank.to_string()), ("WORLD_SIZE", "2".into()), ("MASTER_PORT", port.clone())];
            command.env("MASTER_ADDR", "127.0.0.1").env("LOCAL_RANK", rank.to_string()).envs(variables);
            command.spawn().unwrap()
        })
        .collect();
    let outputs: Vec<_> = ranks.into_iter().map(|rank| rank.wait_with_output().unwrap()).collect();
    for output in &outputs {
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let table = String::from_utf8_lossy(&outputs[0].stdout);
    assert_eq!(rows(&table).len(), 3, "{table}");
    assert!(table.contains("#  Rank  1 "), "{table}");
    assert!(outputs[1].stdout.is_empty(), "only rank 0 speaks");
}

/// A CUDA driver without a GPU, whose device memory no host code can touch.
fn with_devices(name: &str, line: &str, script: &str) -> (Output, String) {
    let mut command = program(name, line);
    command.env("RDMACCL_CUDA", ccl_fake_cuda::Fake::library()).env("RDMACCL_FAKE_CUDA", script);
    let output = command.output().unwrap();
    let table = String::from_utf8(output.stdout.clone()).unwrap();
    (output, table)
}

#[test]
fn every_program_measures_on_device_memory() {
    for name in PROGRAMS {
        for line in ["-g 2 -b 64 -e 10M -f 400", "-t 2 -b 4K -e 4K -u 8"] {
            let line = format!("{line} -n 2 -w 1 --memory device");
            let (output, table) = with_devices(name, &line, "devices 2; delay 1 100");
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{name} {line}: {}\n{table}\n{said}", output.status);
            assert!(table.contains("# Out of bounds values : 0 OK"), "{name} {line}:\n{table}");
            assert!(table.contains("# Buffers on CUDA devices"), "{table}");
        }
    }
}

#[test]
fn device_memory_that_cannot_be_had_is_an_error_that_says_why() {
    let refused = |line: &str, script: &str| {
        let (output, table) = with_devices(ALL_REDUCE, line, script);
        assert!(!output.status.success(), "{table}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let old = refused("-g 1 -b 64 -e 64 --memory device", "version 11040");
    assert!(old.contains("is of CUDA 11.4"), "{old}");
    let none = refused("-g 1 -b 64 -e 64 --memory device", "devices 0");
    assert!(none.contains("CUDA_ERROR_NO_DEVICE"), "{none}");
    let full = refused("-g 1 -b 64 -e 64 --memory device", "fail cuMemAlloc code=2 times=9");
    assert!(full.contains("CUDA_ERROR_OUT_OF_MEMORY (2)"), "{full}");
    let both = refused("-g 1 -b 64 -e 64 --memory device -R 1", "");
    assert!(both.contains("cannot be used with"), "{both}");
}
