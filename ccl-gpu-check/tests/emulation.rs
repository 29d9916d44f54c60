//! All steps without a GPU: over the fake driver, with the kernels on threads of the CPU.
//!
//! `cargo xtask kernels` runs it; it needs g++.

// CI shows the table.
#![allow(clippy::print_stdout)]

use ccl_core::{DataType, ReduceOp};
use ccl_fake_cuda::Fake;
use ccl_transport_cuda::driver::Driver;
use ccl_transport_cuda::gang::{Gang, GangError, Kernels, Shape, Streams, TeamKernel, Work};
use ccl_transport_cuda::program::{Module, Rule};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Many times what it takes, for machines that are busy with other things.
const SECONDS: u64 = 600;

/// The kernels as a shared object, with a planted bug or without.
fn object(bug: Option<&str>) -> PathBuf {
    ccl_fake_cuda::compile_kernels(Path::new(env!("CARGO_TARGET_TMPDIR")), bug)
}

/// Where a test's results go; its own, and gone with it.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("gpu-check-{name}-{number}"));
        let _ = std::fs::remove_dir_all(&folder);
        Folder(folder)
    }

    fn read(&self, step: &str) -> Value {
        let text = std::fs::read_to_string(self.0.join(format!("{step}.json"))).expect("a result");
        serde_json::from_str(&text).expect("JSON")
    }

    /// Runs the program; whether it succeeded, and what it printed.
    fn run(&self, arguments: &[&str], driver: &Path, script: &str) -> (bool, String) {
        let mut program = Command::new(env!("CARGO_BIN_EXE_ccl-gpu-check"));
        program.args(arguments).args(["--small", "--out"]).arg(&self.0);
        program.args(["--seconds", &(SECONDS / 6).to_string()]);
        self.bounded(&mut program, driver, script)
    }

    /// The same for all steps, by the script for people.
    fn check_sh(&self, driver: &Path, script: &str) -> (bool, String) {
        let check = Path::new(env!("CARGO_MANIFEST_DIR")).join("../gpu/check.sh");
        let mut bash = Command::new("bash");
        bash.arg(check).arg("--small").env("GPU_CHECK", env!("CARGO_BIN_EXE_ccl-gpu-check"));
        bash.env("GPU_CHECK_NCCL", fake_nccl());
        self.bounded(bash.env("OUT", &self.0), driver, script)
    }

    fn bounded(&self, program: &mut Command, driver: &Path, script: &str) -> (bool, String) {
        let printed = self.0.join("printed");
        std::fs::create_dir_all(&self.0).expect("a folder");
        let open = || std::fs::File::options().create(true).append(true).open(&printed).expect("a file");
        let mut child = program
            .env("RDMACCL_CUDA", driver)
            .env("RDMACCL_FAKE_CUDA", script)
            .stdin(Stdio::null())
            .stdout(open())
            .stderr(open())
            .spawn()
            .expect("started");
        let deadline = Instant::now() + Duration::from_secs(SECONDS);
        let status = loop {
            if let Some(status) = child.try_wait().expect("a child") {
                break status;
            }
            if Instant::now() > deadline {
                child.kill().expect("killed");
                child.wait().expect("waited for");
                panic!("{program:?}: not done in {SECONDS} s");
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        (status.success(), std::fs::read_to_string(&printed).expect("text"))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn all_steps_are_done_on_threads_of_the_cpu() {
    let folder = Folder::new("all");
    let (ok, printed) = folder.check_sh(&Fake::library(), &format!("kernels {}", object(None).display()));
    println!("{printed}");
    assert!(ok && printed.trim_end().ends_with("all steps are ok"), "{printed}");
    // Not installed here, most likely; then it says that.
    assert!(printed.contains("sanitizer  ok"), "{printed}");
    for kernel in ["interpreter", "two-shot", "staged", "one-shot", "packets"] {
        let tally = &folder.read("correct")["data"][kernel];
        assert!(tally["cases"].as_u64() > Some(15), "{kernel}: {tally}");
        assert_eq!((&tally["wrong"], &tally["too_large"]), (&Value::from(0), &Value::from(0)), "{kernel}");
    }
    assert!(folder.read("graphs")["data"]["graphs"]["replays"].as_u64() > Some(50));
    let processes = &folder.read("processes")["data"]["processes"];
    assert_eq!(
        (&processes["cases"], &processes["left_out"]),
        (&Value::from(7), &Value::from(0)),
        "{processes}"
    );
    let example = folder.read("abort")["data"]["abort"]["example"].to_string();
    assert!(example.contains("waited for rank 0"), "{example}");
    assert_eq!(folder.read("probe")["data"]["device"]["attributes"]["Multiprocessors"], 132);
    let times = folder.read("time");
    for (table, entries) in [("flags", 3), ("short", 12), ("middle", 5), ("large", 5)] {
        let all = times["data"][table].as_array().expect("a table");
        assert_eq!(all.len(), entries, "{table}: {all:?}");
        assert!(all.iter().all(|entry| entry["us"].as_f64() > Some(0.0)), "{table}: {all:?}");
    }
}

#[test]
fn planted_bugs_are_found_by_correct() {
    for (bug, only) in [("BUG_OTHER_READER", "one-shot"), ("BUG_HALF_PACKET", "packets")] {
        let folder = Folder::new(bug);
        let script = format!("kernels {}", object(Some(bug)).display());
        // A matter of luck each time, and of none over several.
        let caught = (0..8).any(|_| {
            let (ok, printed) = folder.run(&["correct", "--only", only], &Fake::library(), &script);
            let result = folder.read("correct");
            assert_eq!(result["finished"], true, "{bug}: {printed}");
            let wrong = result["data"][only]["wrong"].as_u64();
            assert_eq!(ok, wrong == Some(0), "{bug}: {printed}");
            println!("{bug}: {} of {} cases", result["data"][only]["wrong"], result["data"][only]["cases"]);
            !ok
        });
        assert!(caught, "{bug} was not noticed");
    }
}

#[test]
fn planted_bugs_and_handles_that_do_not_open_are_found_by_processes() {
    let folder = Folder::new("processes");
    let bugs = format!("kernels {}", object(Some("BUG_NO_EXIT")).display());
    // Who leaves before all have written has not got all; who is last has.
    let caught = (0..8).any(|_| !folder.run(&["processes", "--only", "two-shot"], &Fake::library(), &bugs).0);
    let result = folder.read("processes");
    let why = result["failures"][0].to_string();
    assert!(caught && result["finished"] == true, "{result}");
    assert!(why.contains("3 ranks as processes: two-shot") && why.contains("bytes are wrong"), "{why}");
    let closed = format!("kernels {}; fail cuIpcOpenMemHandle code=205 nth=2", object(None).display());
    let (ok, printed) = folder.run(&["processes"], &Fake::library(), &closed);
    assert!(
        !ok && printed.contains("CUDA_ERROR_MAP_FAILED (205)") && printed.contains("--ipc=host"),
        "{printed}"
    );
}

/// A libnccl that answers by a script.
fn fake_nccl() -> &'static str {
    static FILE: LazyLock<String> = LazyLock::new(|| {
        let library = Path::new(env!("CARGO_TARGET_TMPDIR")).join("libfake-nccl.so");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake_nccl.cpp");
        let mut compile = Command::new("g++");
        compile.args("-std=c++14 -O1 -Wall -Wextra -Werror -fPIC -shared -pthread".split(' '));
        let output = compile.arg(source).arg("-o").arg(&library).arg("-ldl").output().expect("g++ is needed");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        library.to_string_lossy().into_owned()
    });
    &FILE
}

/// Ours beside an NCCL of this script; whether the step is well, what it printed, and the lines of its table.
fn beside(files: &str, nccl: &str, seconds: u64) -> (bool, String, Vec<Value>) {
    let folder = Folder::new("nccl");
    let mut program = Command::new(env!("CARGO_BIN_EXE_ccl-gpu-check"));
    program.args(["nccl", "--small", "--seconds", &seconds.to_string(), "--out"]).arg(&folder.0);
    program.env("GPU_CHECK_NCCL", files).env("FAKE_NCCL", nccl).env("RDMACCL_NET", "tcp");
    let script = format!("devices 1; kernels {}", object(None).display());
    let (ok, printed) = folder.bounded(&mut program, &Fake::library(), &script);
    let lines = folder.read("nccl")["data"]["beside"]["lines"].as_array().cloned();
    (ok, printed, lines.unwrap_or_default())
}

#[test]
fn calls_are_measured_beside_those_of_nccl() {
    let (ok, printed, lines) =
        beside(&format!("/nowhere/libnccl.so.2:{}", fake_nccl()), "23004", SECONDS / 6);
    assert!(ok && printed.contains(&format!("NCCL 2.30.4 is {}", fake_nccl())), "{printed}");
    assert_eq!(lines.len(), 7, "{lines:?}");
    for line in &lines {
        // This one records no calls of several ranks.
        let recorded = line["how"] != "graph";
        assert_eq!(line["ratio"].as_f64() > Some(0.0), recorded, "{line}");
        assert_eq!(
            line["not"].as_str().is_some_and(|why| why.contains("no graphs here")),
            !recorded,
            "{line}"
        );
        assert!(line["ours"].as_f64() > Some(0.0), "{line}");
    }
}

#[test]
fn an_nccl_that_is_not_there_refuses_hangs_crashes_or_is_wrong_is_told_and_nothing_else() {
    let one = |lines: &[Value], ranks: u64| {
        let of = lines.iter().filter(|line| line["ranks"] == ranks && line["how"] == "calls");
        of.filter(|line| line["ratio"].is_number()).count()
    };
    let (ok, printed, lines) = beside("/nowhere/libnccl.so.2", "", SECONDS / 6);
    let why = "no NCCL could be used, so nothing is compared: /nowhere/libnccl.so.2: it cannot be opened";
    assert!(ok && printed.contains(why), "{printed}");
    assert_eq!((lines.len(), one(&lines, 1), one(&lines, 2)), (7, 0, 0), "{lines:?}");
    let (ok, printed, lines) = beside(fake_nccl(), "22809", SECONDS / 6);
    assert!(ok && printed.contains("before 2.30.3 it takes one rank for each device"), "{printed}");
    let why = "2 ranks: not compared: rank";
    assert!(
        printed.contains(why) && printed.contains("invalid usage (5): Duplicate GPU detected"),
        "{printed}"
    );
    assert_eq!((one(&lines, 1), one(&lines, 2)), (2, 0), "{lines:?}");
    let (ok, printed, _) = beside(fake_nccl(), "crash", SECONDS / 6);
    assert!(ok && printed.contains("its process has ended: signal: 6"), "{printed}");
    let (ok, printed, lines) = beside(fake_nccl(), "wrong", SECONDS / 6);
    assert!(ok && printed.contains("(wrong: 1 of "), "{printed}");
    assert_eq!((one(&lines, 1), one(&lines, 2)), (2, 0), "{lines:?}");
}

#[test]
fn an_nccl_that_hangs_is_not_waited_for_beyond_the_step() {
    let (ok, printed, lines) = beside(fake_nccl(), "hang", 25);
    assert!(printed.contains("not done in"), "{printed}");
    // It has taken the time of what comes after it.
    assert!(!ok && !lines.is_empty(), "{printed}");
}

/// The processes that a process has started and that run.
fn children(process: u32) -> Vec<u32> {
    let list = std::fs::read_to_string(format!("/proc/{process}/task/{process}/children"));
    list.unwrap_or_default().split_whitespace().filter_map(|number| number.parse().ok()).collect()
}

/// Whether it runs, and is not only waited for by whoever inherits it.
fn runs(process: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat"));
    stat.is_ok_and(|stat| stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X'])))
}

#[test]
fn no_rank_outlives_the_step_when_its_time_is_over_and_when_it_is_killed() {
    // Work takes seconds before it begins.
    let script = format!("kernels {}; delay 7 20000000", object(None).display());
    for is_killed in [false, true] {
        let folder = Folder::new("outlive");
        let mut step = Command::new(env!("CARGO_BIN_EXE_ccl-gpu-check"));
        step.args(["processes", "--small", "--seconds", "18", "--out"]).arg(&folder.0);
        step.env("RDMACCL_CUDA", Fake::library()).env("RDMACCL_FAKE_CUDA", &script);
        let mut step = step.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("started");
        let deadline = Instant::now() + Duration::from_secs(60);
        let ranks = loop {
            let ranks = children(step.id());
            if ranks.len() == 3 {
                break ranks;
            }
            assert!(Instant::now() < deadline && runs(step.id()), "it has started {ranks:?}");
            std::thread::sleep(Duration::from_millis(5));
        };
        if is_killed {
            step.kill().expect("killed");
        }
        let status = step.wait().expect("a child");
        assert!(!status.success());
        if !is_killed {
            assert!(!ranks.iter().any(|rank| runs(*rank)), "killed and waited for");
            let why = folder.read("processes")["failures"].to_string();
            assert!(why.contains("no time is left, and rank"), "{why}");
        }
        while ranks.iter().any(|rank| runs(*rank)) {
            assert!(Instant::now() < deadline, "a rank goes on");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn what_would_not_run_all_at_once_is_refused_and_bad_code_says_why() {
    let fake = Fake::start(&format!("kernels {}", object(None).display()));
    let device = Driver::open(Fake::library().to_str()).expect("opened").device(0).expect("a device");
    let primary = device.primary().expect("a context");
    let (kernels, streams) = (Kernels::new(&primary, None), Streams::new(&primary));
    let rule = Rule::new(DataType::F32, ReduceOp::Sum, 8).expect("fits");
    let gang = |blocks| {
        let shape = Shape { blocks, threads: 2, ..Shape::default() };
        let work = Work::Team { kernel: TeamKernel::Meet, ranks: 8, count: 1, bytes: 0 };
        Gang::new(&device, &kernels, &streams, work, &rule, &shape)
    };
    drop(gang(16).expect("128 blocks for 132 multiprocessors"));
    let Err(error @ GangError::TooLarge { blocks: 136, fits: 132, .. }) = gang(17) else {
        panic!("136 blocks for 132 multiprocessors")
    };
    assert!(error.to_string().contains("rdmaccl_meet in 136 blocks of 2 threads"), "{error}");
    let bad = Module { name: "bad", code: "not PTX", kernels: &[], since: (7, 0) };
    let Err(error) = ccl_transport_cuda::Module::load(&primary, &bad) else { panic!("it was loaded") };
    let text = error.to_string();
    assert!(text.contains("INVALID_PTX") && text.contains("line 1; error"), "{text}");
    drop((kernels, streams, primary, fake));
}

#[test]
fn a_machine_without_a_driver_is_told_so() {
    let folder = Folder::new("nothing");
    let (ok, printed) = folder.run(&["all"], Path::new("/nowhere/libcuda.so"), "");
    assert!(!ok && printed.contains("NOT ALL STEPS ARE OK"), "{printed}");
    assert!(printed.contains("/nowhere/libcuda.so cannot be opened"), "{printed}");
    let probe = folder.read("probe");
    assert_eq!((&probe["ok"], &probe["finished"]), (&Value::from(false), &Value::from(true)));
}
