//! How often a collective copies: the bytes that all ranks load and store in their buffers and in the slots between them, as
//! valgrind sees them. They depend on the plan and on what goes by reference, not on how busy the machine is.
//!
//! What is watched is `ccl/examples/copies.rs`.

use crate::counts::{NO_REP_MOVSB, numbers};
use crate::shell::{command, root, run, target};
use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Read};
use std::process::Stdio;
use std::thread;

/// The options of a case. What is chosen for a call depends on whether each rank has a core, so the algorithm is one. The
/// bytes are those of the larger of input and output.
const OPTIONS: [&str; 6] = ["collective", "algorithm", "ranks", "bytes", "memory", "place"];
const CASES: [[&str; 6]; 10] = [
    ["all_reduce", "oneshot", "2", "131072", "ordinary", "out"],
    ["all_reduce", "oneshot", "2", "131072", "mapped", "out"],
    ["all_reduce", "twoshot", "2", "262144", "ordinary", "out"],
    ["all_reduce", "twoshot", "2", "262144", "mapped", "out"],
    ["all_reduce", "twoshot", "4", "262144", "ordinary", "out"],
    ["reduce_scatter", "oneshot", "2", "262144", "ordinary", "out"],
    ["all_gather", "oneshot", "2", "262144", "ordinary", "in"],
    ["all_gather", "oneshot", "2", "262144", "mapped", "in"],
    ["all_to_all", "oneshot", "2", "262144", "ordinary", "out"],
    ["broadcast", "oneshot", "2", "262144", "ordinary", "in"],
];
const CALLS: u64 = 2;
const PAGE_BITS: u32 = 12;
/// Of the bytes of a call. What is no data, sequence numbers and credits, comes to 0.02; a piece that is copied once more, to 0.2.
const TOLERANCE: f64 = 0.05;
/// Where the bytes of each case stand, for people and for comparison.
const RECORD: &str = "benches/copies.txt";
const HEADER: &str = "\
# Bytes that all ranks of a collective store and load, by the bytes of all ranks in the larger of input and output: in the
# slots between ranks, and in the buffers of the call. `cargo xtask counts` fails where one of them is more than 0.05 above
# its number here. Valgrind sees each load and store of ccl/examples/copies.rs, which makes 2 calls of float32 (sums) among threads.
#
# collective    algorithm  ranks   bytes  memory    place  slots: stored  loaded  buffers: stored  loaded
";

/// In bytes.
#[derive(Default, Clone, Copy)]
struct Moved {
    stored: u64,
    loaded: u64,
}

/// How many cases are as good as they were.
pub(crate) fn check() -> Result<u64, String> {
    // What is copied does not depend on how crates are linked, which takes a minute for a release.
    run(&mut command("cargo build --profile fast --locked --workspace --example copies"))?;
    let path = root().join(RECORD);
    let recorded = std::fs::read_to_string(&path).unwrap_or_default();
    let (mut passed, mut now, mut worse) = (0, HEADER.to_string(), Vec::new());
    for (case, watched) in CASES.iter().zip(watch_all()) {
        let moved = watched?;
        let [collective, algorithm, ranks, bytes, memory, place] = case;
        let [slots_stored, slots_loaded, stored, loaded] = moved;
        let line = format!(
            "{collective:<14}  {algorithm:<9}  {ranks:>5}  {bytes:>6}  {memory:<8}  {place:<5}  \
             {slots_stored:>13.2}  {slots_loaded:>6.2}  {stored:>15.2}  {loaded:>6.2}"
        );
        println!("{line}");
        let _ = writeln!(now, "{line}");
        match numbers::<f64, 4>(&recorded, case) {
            Some(before) if (0..4).all(|i| moved[i] <= before[i] + TOLERANCE) => passed += 1,
            Some(before) => worse.push(format!("{line} where it says {before:?}")),
            None => worse.push(format!("{line} where it says nothing")),
        }
    }
    let fresh = target().join("copies.txt");
    std::fs::write(&fresh, now).map_err(|e| format!("{}: {e}", fresh.display()))?;
    if worse.is_empty() {
        return Ok(passed);
    }
    Err(format!("{RECORD}:\n{}\nFind out why, or copy {} there", worse.join("\n"), fresh.display()))
}

/// What is stored in slots, loaded from them, stored in buffers and loaded from them, by the bytes of the case on all ranks; or why nobody knows.
type Watched = Result<[f64; 4], String>;

/// All cases, two at a time, which takes half as long.
fn watch_all() -> Vec<Watched> {
    let watch_both = |both: &[[&str; 6]]| -> Vec<Watched> {
        thread::scope(|scope| {
            let threads: Vec<_> = both.iter().map(|case| scope.spawn(|| watch(case))).collect();
            let panicked = |_| Err("a watch panicked".to_string());
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)).collect()
        })
    };
    CASES.chunks(2).flat_map(watch_both).collect()
}

fn watch(case: &[&str; 6]) -> Watched {
    let options: String =
        OPTIONS.iter().zip(case).map(|(name, value)| format!(" --{name} {value}")).collect();
    let program = target().join("fast/examples/copies");
    let line =
        format!("valgrind --tool=lackey --trace-mem=yes {}{options} --calls {CALLS}", program.display());
    watch_program(&line, case).map_err(|why| format!("{line}: {why}"))
}

fn watch_program(line: &str, case: &[&str; 6]) -> Watched {
    let mut child = command(line)
        .envs([NO_REP_MOVSB])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| e.to_string())?;
    let trace = child.stderr.take().ok_or("it has no standard error")?;
    // The program says little, which fits into its pipe while the trace is read.
    let (pages, said) = pages(trace).map_err(|e| e.to_string())?;
    let output = child.wait_with_output().map_err(|e| e.to_string())?;
    if !output.status.success() {
        return Err(format!("{}\n{said}", output.status));
    }
    let regions = String::from_utf8_lossy(&output.stdout);
    let (slots, buffers) = (moved(&pages, &regions, "slots")?, moved(&pages, &regions, "buffer")?);
    let [_, _, ranks, bytes, ..] = case.map(|word| word.parse::<u64>().unwrap_or_default());
    let all = (ranks * bytes * CALLS) as f64;
    Ok([slots.stored, slots.loaded, buffers.stored, buffers.loaded].map(|moved| moved as f64 / all))
}

/// What moved on each page, and the lines that tell of no load or store.
fn pages(trace: impl Read) -> std::io::Result<(HashMap<u64, Moved>, String)> {
    let (mut pages, mut said) = (HashMap::<u64, Moved>::new(), String::new());
    let (mut lines, mut line) = (BufReader::with_capacity(1 << 20, trace), Vec::new());
    while lines.read_until(b'\n', &mut line)? > 0 {
        let text = String::from_utf8_lossy(&line);
        // An instruction is fetched, or it loads, stores or modifies: ` L 1ffeffe3d8,8`.
        let access = text.get(3..).and_then(|at| at.trim_end().split_once(','));
        let access =
            access.and_then(|(at, n)| Some((u64::from_str_radix(at, 16).ok()?, n.parse::<u64>().ok()?)));
        match (text.get(..3), access) {
            (Some("I  "), Some(_)) => {}
            (Some(kind @ (" L " | " S " | " M ")), Some((at, bytes))) => {
                let page = pages.entry(at >> PAGE_BITS).or_default();
                page.loaded += if kind == " S " { 0 } else { bytes };
                page.stored += if kind == " L " { 0 } else { bytes };
            }
            _ => said.push_str(&text),
        }
        line.clear();
    }
    Ok((pages, said))
}

/// What moved in the regions of a kind: `slots 0x5a00000 1226833920`.
fn moved(pages: &HashMap<u64, Moved>, regions: &str, kind: &str) -> Result<Moved, String> {
    let region = |line: &str| {
        let mut words = line.strip_prefix(kind)?.strip_prefix(" 0x")?.split(' ');
        let first = u64::from_str_radix(words.next()?, 16).ok()? >> PAGE_BITS;
        Some(first..first + (words.next()?.parse::<u64>().ok()? >> PAGE_BITS))
    };
    let regions: Vec<_> = regions.lines().filter_map(region).collect();
    if regions.is_empty() {
        return Err(format!("it named no {kind}"));
    }
    let within = pages.iter().filter(|(page, _)| regions.iter().any(|region| region.contains(page)));
    Ok(within.fold(Moved::default(), |sum, (_, page)| Moved {
        stored: sum.stored + page.stored,
        loaded: sum.loaded + page.loaded,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_and_stores_are_summed_by_region() {
        let trace = "==7== Lackey\nI  04001000,3\n L 5a00ff8,8\n S 5a01000,32\n M 5a01ffc,4\n S 5a02000,16\n L 6000000,8\n";
        let (pages, said) = pages(trace.as_bytes()).unwrap();
        assert_eq!(said, "==7== Lackey\n");
        let regions = "buffer 0x6000000 4096\nslots 0x5a00000 8192\n";
        let slots = moved(&pages, regions, "slots").unwrap();
        assert_eq!((slots.stored, slots.loaded), (36, 12));
        let buffers = moved(&pages, regions, "buffer").unwrap();
        assert_eq!((buffers.stored, buffers.loaded), (0, 8));
        assert!(moved(&pages, "buffer 0x6000000 4096\n", "slots").is_err());
    }

    #[test]
    fn recorded_numbers_are_found_by_all_of_a_case() {
        let recorded = "# all_reduce ring 2 8 mapped in 9 9 9 9\nall_reduce ring  2  64  mapped  in  0.00  0.01  1.00  2.00\n";
        let case = |bytes, place| ["all_reduce", "ring", "2", bytes, "mapped", place];
        let numbers = |bytes, place| numbers::<f64, 4>(recorded, &case(bytes, place));
        assert_eq!(numbers("64", "in"), Some([0.0, 0.01, 1.0, 2.0]));
        assert_eq!(numbers("6", "in"), None);
        assert_eq!(numbers("64", "out"), None);
        assert_eq!(numbers("8", "in"), None);
    }
}
