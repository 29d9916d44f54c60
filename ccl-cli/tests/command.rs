//! The command as users run it: output, exit status, and what it refuses.

use serde_json::Value;
use std::io::Write as _;
use std::process::{Command, Output, Stdio};

/// The command with its arguments, in an environment that has nothing but what is given here.
fn command(line: &str, variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rdmaccl"));
    command.args(line.split_whitespace()).env_clear().envs(variables.iter().copied());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn run_with(line: &str, variables: &[(&str, &str)]) -> (i32, String, String) {
    let Output { status, stdout, stderr } = command(line, variables).output().unwrap();
    (status.code().unwrap(), text(&stdout), text(&stderr))
}

fn right(line: &str) -> String {
    let (status, out, err) = run_with(line, &[]);
    assert_eq!((status, err.as_str()), (0, ""), "{line}: {out}");
    out
}

/// What is said about a line that has no answer.
fn refused(line: &str) -> String {
    let (status, out, err) = run_with(line, &[]);
    assert_eq!((status, out.as_str()), (2, ""), "{line}: {err}");
    err
}

fn verify(plan: &str) -> (i32, String, String) {
    let mut child = command("plan verify -", &[]).stdin(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(plan.as_bytes()).unwrap();
    drop(input);
    let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
    (status.code().unwrap(), text(&stdout), text(&stderr))
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

#[test]
fn help_names_every_command_and_nothing_is_asked_twice() {
    for line in [
        "--help",
        "plan --help",
        "plan show --help",
        "plan verify --help",
        "plan price --help",
        "info --help",
        "tune --help",
    ] {
        assert!(right(line).contains("Usage: rdmaccl"), "{line}");
    }
    let help = right("--help");
    assert!(help.contains("plan") && help.contains("info") && help.contains("Exit status"), "{help}");
    assert!(right("--version").starts_with("rdmaccl 0."));
    let (status, _, err) = run_with("", &[]);
    assert!(status == 2 && err.contains("Usage: rdmaccl"), "{err}");
}

#[test]
fn what_is_unknown_is_refused_with_what_is_known() {
    for (line, what) in [
        ("plna", "unrecognized subcommand"),
        ("plan sho", "unrecognized subcommand"),
        ("plan show all_reduc -n 4", "one of all_reduce, reduce"),
        ("plan show all_reduce", "--ranks"),
        ("plan show all_reduce -n 0", "1..=65536"),
        ("plan show all_reduce -n x", "invalid"),
        ("plan show all_reduce -n 4 -a rings", "one of oneshot"),
        ("plan show gather -n 4 -a ring", "ring does no gather for 4 ranks: one of oneshot, chain, binomial"),
        ("plan show all_reduce -n 4 --root 1", "has no root"),
        ("plan show broadcast -n 4 --root 4", "0 to 3"),
        ("plan show all_reduce -n 4 --rank 4", "0 to 3"),
        ("plan show all_reduce -n 4 --rank 1 -f svg", "--rank shows text"),
        ("plan show all_reduce -n 4 -f pdf", "invalid value 'pdf'"),
        ("plan show all_reduce -n 2000 -a oneshot", "at most 1024 ranks"),
        ("plan show all_reduce -n 4 -o /nonexistent/x", "cannot write /nonexistent/x"),
        ("plan verify", "COLLECTIVE|FILE"),
        ("plan verify all_reduce", "of how many ranks? add -n N"),
        ("plan verify nothing.json", "'nothing.json' is no file, and no collective"),
        ("plan verify nothing.json -n 3", "no collective, and -n is for collectives"),
        ("plan verify all_reduce -n 3 --credits 0", "1..=1024"),
        ("plan verify all_reduce -n 3 --root 0", "has no root"),
        ("plan price all_reduce -n 3 -b 8..4", "no range"),
        ("plan price all_reduce -n 3 -b 8Q", "no size"),
        ("plan price gather -n 3 -a pat", "pat does no gather"),
        ("tune", "set HOME or RDMACCL_PROFILE"),
        ("tune --dry-run -o x", "cannot be used with"),
        ("info -n 0", "1..=65536"),
        ("info now", "unexpected argument"),
    ] {
        let said = refused(line);
        assert!(said.starts_with("error: ") && said.contains(what), "{line}: {said}");
    }
    let (status, _, err) = run_with("plan price all_reduce -n 4", &[("RDMACCL_CREDITS", "x")]);
    assert!(
        status == 2 && err.contains("RDMACCL_CREDITS=x; set it to auto or a number from 1 to 1024"),
        "{err}"
    );
}

#[test]
fn every_plan_that_is_listed_is_shown_saved_and_proved() {
    for ranks in [1, 5, 8] {
        let entries = json(&right(&format!("plan list -n {ranks} --json")));
        let entries = entries.as_array().unwrap();
        assert!(entries.len() > 20);
        let table = right(&format!("plan list -n {ranks}"));
        for entry in entries {
            let name = |key: &str| entry[key].as_str().unwrap();
            assert!(table.contains(name("algorithm")) && table.contains(name("collective")));
            let line =
                format!("plan show {} -n {ranks} -a {} -f json", name("collective"), name("algorithm"));
            let (status, out, err) = verify(&right(&line));
            assert_eq!((status, err.as_str()), (0, ""), "{line}: {out}");
            assert!(out.contains("proved"), "{line}: {out}");
        }
    }
}

#[test]
fn plans_are_shown_in_every_form() {
    let whole = right("plan show all_reduce -n 3 -a ring");
    assert!(whole.starts_with("all_reduce by ring, 3 ranks, 3 parts per block\nrank 0\n"));
    let one = right("plan show all_reduce -n 3 -a ring --rank 2");
    assert!(whole.ends_with(one.split_once('\n').unwrap().1), "{one}");
    assert!(right("plan show all_reduce -n 60000 -a ring --rank 59999").contains("rank 59999\n"));
    assert!(right("plan show bcast -n 3".replace("bcast", "broadcast").as_str()).contains("root 0"));
    assert!(right("plan show broadcast -n 5 --root 3 -a tree").contains("root 3"));
    assert!(right("plan show alltoall -n 3 -f dot").starts_with("digraph"));
    let svg = right("plan show all_reduce -n 4 -f svg");
    assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"));

    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("plan.json");
    let path = path.to_str().unwrap();
    assert_eq!(right(&format!("plan show all_reduce -n 4 -a tree -f json -o {path}")), "");
    assert!(right(&format!("plan verify {path}")).contains("all_reduce by tree, 4 ranks"));
}

#[test]
fn without_a_name_the_chosen_algorithm_is_shown() {
    let with = |value| run_with("plan show all_reduce -n 4", &[("RDMACCL_ALGO", value)]).1;
    assert!(with("ring").starts_with("all_reduce by ring"));
    assert!(with("all_reduce:tree,ring").starts_with("all_reduce by tree"));
    assert!(right("plan show all_reduce -n 4 -b 8").starts_with("all_reduce by oneshot"));
}

#[test]
fn proofs_say_what_was_proved() {
    let one = right("plan verify all_reduce -n 4 -a ring");
    for line in [
        "result     proved",
        "on every rank yes, at every size no",
        "none with 8 credits per link; it needs 2",
    ] {
        assert!(one.contains(line), "{one}");
    }
    let all = right("plan verify reduce -n 6");
    assert!(all.contains("oneshot    0-5    yes"), "{all}");
    let value = json(&right("plan verify all_reduce -n 4 --json"));
    for verdict in value.as_array().unwrap() {
        assert!(verdict["proof"]["messages"].as_u64().unwrap() > 0, "{verdict}");
        assert!(verdict.get("fault").is_none());
    }
}

#[test]
fn a_plan_that_needs_more_credits_than_there_are_is_bad_news() {
    let (status, out, _) = run_with("plan verify all_reduce -n 8 -a halving --credits 1", &[]);
    assert!(status == 1 && out.contains("refused") && out.contains("credit"), "{out}");
    let (status, out, _) = run_with("plan verify all_reduce -n 8 --json", &[("RDMACCL_CREDITS", "1")]);
    let value = json(&out);
    let faults = value.as_array().unwrap().iter().filter(|v| v.get("fault").is_some()).count();
    assert!(status == 1 && faults > 0 && faults < value.as_array().unwrap().len(), "{out}");
}

#[test]
fn plan_files_from_outside_are_refused_with_their_fault() {
    let plan = right("plan show all_reduce -n 3 -a ring -f json");
    let (status, out, err) = verify(&plan.replace("{\"output\":1}", "{\"output\":2}"));
    assert_eq!((status, err.as_str()), (1, ""));
    assert_eq!(out, "-: refused: rank 0: never writes output chunk 1\n");
    for (wrong, status, says) in [
        (plan.replace("\"ranks\":3", "\"ranks\":4294967295"), 1, "3 programs for 4294967295 ranks"),
        (plan.replace("\"parts\":3", "\"parts\":4294967295"), 1, "more chunks than can be numbered"),
        (plan.replace("\"peers\":[1]", "\"peers\":[77]"), 1, "77"),
        (plan.replace("\"version\":1", "\"version\":2"), 2, "version 2; this build reads version 1"),
        (plan[..plan.len() / 2].to_string(), 2, "EOF"),
        (plan.replace("\"parts\"", "\"surprise\":1,\"parts\""), 2, "surprise"),
        ("[".repeat(100_000), 2, "malformed plan file"),
        ("{\"version\":1,\"programs\":".to_string() + &"[".repeat(100_000), 2, "malformed plan file"),
        (String::new(), 2, "malformed plan file"),
        ("\u{0}".to_string(), 2, "malformed plan file"),
    ] {
        let (is, out, err) = verify(&wrong);
        assert_eq!(is, status, "{out}{err}");
        assert!(format!("{out}{err}").contains(says), "{says}: {out}{err}");
    }
    assert!(
        refused("plan verify /dev/zero").contains("at most"),
        "a file without end is not read to its end"
    );
    assert!(refused("plan verify /").contains("cannot read /"));
}

#[test]
fn prices_mark_the_choice_and_say_where_the_tile_comes_from() {
    let line = "plan price all_reduce -n 4 --cores 4 -b 8..64M";
    let table = right(line);
    let rows: Vec<_> =
        table.lines().filter(|line| line.ends_with("the slot") || line.ends_with("the price")).collect();
    assert_eq!(rows.len(), 13, "{table}");
    assert!(rows.iter().all(|row| row.matches('*').count() == 1), "{table}");
    assert_eq!(table, right(line), "it measures nothing");

    let rows = json(&right(&format!("{line} --json")));
    for row in rows.as_array().unwrap() {
        let prices = row["prices"].as_array().unwrap();
        let price =
            |name: &Value| prices.iter().find(|p| p["algorithm"] == *name).unwrap()["predicted_us"].as_f64();
        let cheapest = prices.iter().filter_map(|p| p["predicted_us"].as_f64()).fold(f64::INFINITY, f64::min);
        // One that stands first is kept unless another is cheaper by a margin.
        assert!(price(&row["chosen"]).unwrap() <= cheapest / 0.9, "{row}");
    }
    let (_, out, _) = run_with(line, &[("RDMACCL_ALGO", "ring"), ("RDMACCL_TILE_BYTES", "8K")]);
    assert!(out.contains("RDMACCL_ALGO wants ring") && out.contains("8K  RDMACCL_TILE_BYTES"), "{out}");
    let only = json(&right("plan price all_reduce -n 4 -b 1M -a tree --in-place --json"));
    assert_eq!((only[0]["chosen"].as_str(), only[0]["prices"].as_array().unwrap().len()), (Some("tree"), 1));
    let blocks = json(&right("plan price alltoall -n 4 -b 1M --json"));
    assert_eq!(blocks[0]["block"], 1 << 18, "sizes count all blocks, as in alltoall_perf");
}

#[test]
fn what_is_tuned_is_what_prices_are_made_of() {
    let folder = std::env::temp_dir().join(format!("rdmaccl-command-{}", std::process::id()));
    let home = [("XDG_CONFIG_HOME", folder.to_str().unwrap())];
    let (status, out, err) = run_with("tune --force --json", &home);
    assert_eq!((status, err.as_str()), (0, ""), "{out}");
    let tuning = json(&out);
    let constants = tuning["constants"].as_array().unwrap();
    let alpha = constants.iter().find(|c| c["name"] == "alpha_ns").unwrap()["measured"].as_f64().unwrap();
    let times = |call: &serde_json::Value| {
        ["measured_us", "built_in_us", "predicted_us"].map(|time| call[time].as_f64().unwrap())
    };
    let samples = tuning["samples"].as_array().unwrap();
    assert!(samples.iter().flat_map(times).all(|time| time > 0.0), "{samples:?}");
    let path = folder.join("rdmaccl/profile.json");
    assert_eq!(tuning["profile"].as_str(), path.to_str());
    let profile = json(&std::fs::read_to_string(&path).unwrap());
    assert_eq!(profile["constants"]["alpha_ns"].as_f64(), Some(alpha));

    let (_, out, _) = run_with("plan price all_reduce -n 2 -b 8", &home);
    assert!(out.contains(&format!("A message takes {alpha:.0} ns")), "{out}");
    let (status, out, _) = run_with("info", &home);
    assert!(status == 0 && out.contains(&format!("from {}", path.display())), "{out}");

    std::fs::write(&path, "{}").unwrap();
    let (status, out, _) = run_with("info", &home);
    assert!(status == 0 && out.contains("is not used: it is no profile"), "{out}");
    let (status, out, _) = run_with("info", &[("RDMACCL_PROFILE", path.to_str().unwrap())]);
    assert!(status == 1 && out.contains("error: invalid argument: RDMACCL_PROFILE="), "{out}");
    let (status, _, err) = run_with("plan price all_reduce -n 2", &[("RDMACCL_PROFILE", "/nonexistent/p")]);
    assert!(status == 2 && err.contains("run `rdmaccl tune` on this machine"), "{err}");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn info_tells_every_setting_its_value_and_its_origin() {
    let variables =
        [("RDMACCL_CREDITS", "16"), ("RDMACCL_SECRET", "0123456789abcdef!"), ("RDMACCL_SLOT_BYTES", "32K")];
    let (status, out, err) = run_with("info -n 4 --json", &variables);
    assert_eq!((status, err.as_str()), (0, ""), "{out}");
    let info = json(&out);
    let settings = info["settings"].as_array().unwrap();
    let setting = |name: &str| settings.iter().find(|s| s["name"] == name).unwrap();
    assert_eq!(setting("RDMACCL_CREDITS")["value"], "16");
    assert_eq!(setting("RDMACCL_CREDITS")["origin"], "environment");
    assert_eq!(setting("RDMACCL_TIMEOUT")["origin"], "default");
    assert!(!out.contains("0123456789abcdef"), "a secret is not shown");
    assert_eq!(info["transports"][0]["works"], true, "{}", info["transports"]);
    assert_eq!(info["choices"]["ranks"], 4);
    assert_eq!(info["choices"]["collectives"].as_array().unwrap().len(), 8);

    let (status, out, _) = run_with("info", &variables);
    assert_eq!(status, 0);
    for setting in settings {
        assert!(out.contains(setting["name"].as_str().unwrap()), "{setting}");
    }
    for heading in ["Host", "Transports", "Launcher", "Chosen for", "Settings"] {
        assert!(out.contains(&format!("\n{heading}")), "{out}");
    }
    assert!(out.contains("buffers on CUDA devices"), "{out}");
}

#[test]
fn info_goes_on_after_what_is_wrong_and_says_so() {
    let variables = [("RDMACCL_CREDITS", "many"), ("RDMACCL_CREDTIS", "4"), ("RDMACCL_ALGO", "rings")];
    let (status, out, _) = run_with("info", &variables);
    assert_eq!(status, 1, "{out}");
    for said in [
        "RDMACCL_CREDITS=many; set it to auto or a number from 1 to 1024",
        "RDMACCL_ALGO=rings; set it to an algorithm",
        "unknown variable RDMACCL_CREDTIS: did you mean RDMACCL_CREDITS?",
        "two ranks of this process met",
    ] {
        assert!(out.contains(said), "{said}: {out}");
    }
    let (status, out, _) = run_with("info", &[("RDMACCL_SOCKET_IFNAME", "=nosuch0")]);
    assert!(status == 1 && out.contains("does not work") && out.contains("nosuch0"), "{out}");
}

/// The kernel shows neither of the two devices, so how far they are apart is not known.
#[test]
fn info_says_what_gpudirect_is_used_for() {
    let libraries = [ccl_fake_cuda::Fake::library(), ccl_fake_ibverbs::Fake::library()];
    let [cuda, ibverbs] = libraries.map(|file| file.to_str().unwrap().to_string());
    let variables = [
        ("RDMACCL_CUDA", &*cuda),
        ("RDMACCL_FAKE_CUDA", "attribute 116 1; attribute 124 1"),
        ("RDMACCL_IBVERBS", &*ibverbs),
        ("RDMACCL_FAKE_IBVERBS", "device soft0"),
    ];
    let (_, out, _) = run_with("info", &variables);
    for words in [
        "GPUDirect RDMA, for what kernels send to other hosts and get from there (RDMACCL_GPUDIRECT=auto):",
        "chosen for device 0 and soft0: unknown distance: pinned memory (soft0 is software, which the processor runs)",
    ] {
        assert!(out.contains(words), "{out}");
    }
    let (_, out, _) = run_with("info", &[("RDMACCL_CUDA", &*cuda), ("RDMACCL_IBVERBS", "/nonexistent.so")]);
    assert!(
        out.contains("get from there: none, as ") && out.contains("/nonexistent.so cannot be opened"),
        "{out}"
    );
}

#[test]
fn info_knows_the_launcher() {
    let torch = [("RANK", "1"), ("WORLD_SIZE", "6"), ("MASTER_ADDR", "n0"), ("MASTER_PORT", "29500")];
    let (status, out, _) = run_with("info", &torch);
    assert!(status == 0 && out.contains("torchrun: rank 1 of 6; the ranks meet at n0:29501"), "{out}");
    assert!(out.contains("Chosen for 6 ranks") && out.contains("MASTER_ADDR"), "{out}");
    let many = [torch[0], ("WORLD_SIZE", "4294967295"), torch[2], torch[3]];
    assert!(run_with("info", &many).1.contains("Chosen for 65536 ranks"), "what is absurd takes no time");
    let (status, out, _) = run_with("info", &torch[..1]);
    assert!(status == 1 && out.contains("RANK without WORLD_SIZE"), "{out}");
}

#[test]
fn a_reader_that_leaves_is_no_error() {
    for line in ["plan show all_to_all -n 128 -a pairwise", "info", "--help"] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = command(line, &[]).stdout(writer).output().unwrap();
        assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(0), ""), "{line}");
    }
}
