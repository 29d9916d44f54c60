//! Every step in a process of its own, and the table.

use crate::{Options, What};
use serde_json::Value;
use std::fs::read_to_string;
use std::process::Command;
use std::time::{Duration, Instant};

/// Runs all steps, whatever becomes of each; whether all went well.
pub(crate) fn run(options: &Options) -> bool {
    let mut ok = true;
    for (step, _) in What::STEPS {
        // A step that could not even begin leaves no old result.
        let _ = std::fs::remove_file(options.out.join(format!("{}.json", step.name())));
        ok &= start(step, options);
    }
    table(options) && ok
}

fn start(step: What, options: &Options) -> bool {
    let Ok(program) = std::env::current_exe() else { return false };
    let mut command = Command::new(program);
    command.arg(step.name()).arg("--out").arg(&options.out).args(["--device", &options.device.to_string()]);
    command.args(options.small.then_some("--small"));
    command.args(options.only.iter().flat_map(|text| ["--only", text]));
    let seconds = step.seconds(options);
    command.args(["--seconds", &seconds.to_string()]);
    let Ok(mut child) = command.spawn() else { return false };
    // The step ends itself; but one that hangs in the driver does not.
    let deadline = Instant::now() + Duration::from_secs(seconds + 5);
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return status.success(),
            Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(20)),
            _ => {
                let _ = child.kill();
                let _ = child.wait();
                eprintln!("{}: killed after {} s", step.name(), seconds + 5);
                return false;
            }
        }
    }
}

/// Prints what all steps have found, also those of other programs that wrote a result beside them.
pub(crate) fn table(options: &Options) -> bool {
    let mut ok = true;
    println!();
    let known = What::STEPS.map(|(step, _)| step.name());
    let others = ["sanitizer", "torch"].map(String::from);
    let done = |name: &String| options.out.join(format!("{name}.json"));
    for name in known.iter().chain(others.iter().filter(|name| done(name).exists())) {
        let read = read_to_string(done(name)).ok().and_then(|text| serde_json::from_str::<Value>(&text).ok());
        let Some(result) = read else {
            println!("{name:<10} NOT RUN");
            ok = false;
            continue;
        };
        let texts = |field: &str| -> Vec<String> {
            let all = result[field].as_array().into_iter().flatten();
            all.filter_map(|text| text.as_str().map(String::from)).collect()
        };
        let (is_ok, is_over) = (result["ok"] == true, result["finished"] == true);
        ok &= is_ok;
        let failed = result["failed"].as_u64().unwrap_or(0);
        let word = match (is_ok, is_over) {
            (true, _) => "ok".to_string(),
            (false, true) => format!("FAILED: {failed} things are wrong"),
            (false, false) => format!("NOT FINISHED, {failed} things are wrong until then"),
        };
        println!("{name:<10} {word}");
        for line in texts("lines").iter().chain(texts("failures").iter().take(3)) {
            println!("           {line}");
        }
    }
    println!("\n{}", if ok { "all steps are ok" } else { "NOT ALL STEPS ARE OK" });
    ok
}
