//! All-reduces of middle length, and long ones as a part of what the device's memory could do.

use crate::bench::Bench;
use crate::case::{Case, least_credits, plan};
use crate::outcome::Outcome;
use crate::time::microseconds;
use ccl_core::{DataType, ReduceOp};
use ccl_transport_cuda::driver::Attribute;
use ccl_transport_cuda::gang::{Gang, GangError, TeamKernel};
use ccl_transport_cuda::program::{Geometry, MAX_TEAM_BLOCKS};
use serde_json::{Value, json};

/// Blocks and threads of each rank.
type Shapes<'a> = &'a [(u32, u32)];

/// Blocks of a rank at most, as the library has them.
const MIDDLE_BLOCKS: u32 = 32;

/// From where one-shot ends to where only bandwidth counts.
pub(crate) fn middle(bench: &Bench, outcome: &mut Outcome, bandwidth: f64) -> Result<(), GangError> {
    let mut all = Vec::new();
    for &ranks in bench.scale(&[2, 4, 8][..], &[2]) {
        outcome.say(format!(
            "all_reduce of {ranks}, us: one-shot, staged two-shot, plan oneshot, plan twoshot, two-shot on mapped buffers"
        ));
        let most = (processors(bench)? / ranks).clamp(1, MIDDLE_BLOCKS);
        let shapes = [(most, 512), (most.div_ceil(2), 512), (most.div_ceil(4), 512)];
        for &bytes in
            bench.scale(&[1 << 18, 1 << 19, 1 << 20, 1 << 21, 1 << 22, 1 << 23, 1 << 24][..], &[1 << 14])
        {
            let input = numbers(bytes);
            let mut said = Vec::new();
            for kernel in [1, 4, 5, 2, 0] {
                let found = measure(bench, (ranks, &shapes), &input, kernel, bandwidth, outcome)?;
                said.push(found.time.map_or("-".into(), |time| format!("{time:.1}")));
                all.push(found.told);
            }
            outcome.say(format!("{:>6} KiB  {}", bytes >> 10, said.join("  ")));
            outcome.put("middle", json!(all));
        }
    }
    Ok(())
}

fn processors(bench: &Bench) -> Result<u32, GangError> {
    Ok(bench.device.attribute(Attribute::Multiprocessors)?.unwrap_or(1).unsigned_abs())
}

pub(crate) fn run(bench: &Bench, outcome: &mut Outcome, bandwidth: f64) -> Result<(), GangError> {
    let mut all = Vec::new();
    for &ranks in bench.scale(&[2, 4, 8][..], &[2]) {
        outcome.say(format!(
            "all_reduce of {ranks}, ms and % of the least bytes, 2nS, at the speed of a copy: two-shot, one-shot, plan twoshot, plan ring; {} plain additions (85 % by two-shot at 256 MiB are wanted)",
            ranks - 1
        ));
        for &bytes in bench.scale(&[64 << 20, 256 << 20, 1 << 30][..], &[1 << 14]) {
            let input = numbers(bytes);
            let mut said = Vec::new();
            let most = processors(bench)? / ranks;
            for kernel in 0..4 {
                let shapes = [(most, 512), (2 * most, 256)];
                let found = measure(bench, (ranks, &shapes), &input, kernel, bandwidth, outcome)?;
                let ms =
                    found.time.map(|time| format!("{:.3} ({:.0} %)", time / 1e3, 100.0 * found.of_least));
                said.push(ms.unwrap_or("-".into()));
                all.push(found.told);
            }
            if let Some(time) = additions(bench, ranks - 1, &input, outcome)? {
                said.push(format!("{:.3}", time / 1e3));
                all.push(json!({"additions": ranks - 1, "bytes": bytes, "us": time}));
            }
            outcome.say(format!("{:>5} MiB  {}", bytes >> 20, said.join("  ")));
            outcome.put("large", json!(all));
        }
    }
    Ok(())
}

/// What has come of a kernel, with the blocks and threads that are best.
struct Found {
    /// Microseconds, if it was measured.
    time: Option<f64>,
    /// Of the time in which a copy would move the least bytes.
    of_least: f64,
    told: Value,
}

fn measure(
    bench: &Bench,
    (ranks, shapes): (u32, Shapes<'_>),
    input: &[u8],
    kernel: usize,
    bandwidth: f64,
    outcome: &mut Outcome,
) -> Result<Found, GangError> {
    let bytes = input.len();
    let mut best: Option<(f64, Value)> = None;
    let mut skipped = None;
    for &(blocks, threads) in bench.scale(shapes, &[(2, 3)]) {
        let blocks = blocks.clamp(1, MAX_TEAM_BLOCKS as u32);
        let case = case(ranks, bytes, kernel, blocks, threads);
        let told = json!({
            "kernel": case.kernel_name(), "algorithm": case.plan.algorithm, "ranks": ranks, "bytes": bytes,
            "blocks": blocks, "threads": threads,
        });
        // Two buffers each; the one-shot kernel has a part for each of 16 ranks, twice, besides.
        let needed = ranks as usize * bytes * if kernel == 1 { 2 + 32 } else { 2 };
        let (free, _) = bench.primary.free_memory()?;
        if needed > free / 10 * 9 {
            skipped =
                Some(json!({"call": told, "skipped": format!("{needed} bytes are needed, {free} are free")}));
            continue;
        }
        if !bench.wants(&case.name()) {
            continue;
        }
        let mut gang = match case.gang(bench) {
            Err(error @ GangError::TooLarge { .. }) => {
                skipped = Some(json!({"call": told, "skipped": error.to_string()}));
                continue;
            }
            made => made?,
        };
        gang.write_input(0, input)?;
        gang.spread()?;
        let time = microseconds(&gang, bench, bench.scale((7, 3), (1, 1)), || gang.launch())?;
        if let Some(what) = wrong(&gang, input, ranks)? {
            outcome.fail(format!("{}: {what}", case.name()));
            let told = json!({"call": told, "wrong": what});
            return Ok(Found { time: None, of_least: 0.0, told });
        }
        if best.as_ref().is_none_or(|(least, _)| time < *least) {
            best = Some((time, told));
        }
    }
    let Some((time, told)) = best else {
        return Ok(Found { time: None, of_least: 0.0, told: skipped.unwrap_or(Value::Null) });
    };
    let (n, s) = (f64::from(ranks), bytes as f64);
    // Bytes that the kernel reads and writes by its design; and the least.
    let own = match kernel {
        0 => 2.0 * n * s,
        1 | 5 => n * (2.0 * n + 1.0) * s,
        // Through slots: each piece is written to one and read from one.
        _ => (6.0 * n - 4.0) * s,
    };
    let part = |bytes: f64| bytes / bandwidth / (time / 1e6);
    let least = part(2.0 * n * s);
    let told = json!({"call": told, "us": time, "of_least": least, "own_bytes": own, "of_own": part(own)});
    Ok(Found { time: Some(time), of_least: least, told })
}

/// Microseconds of so many additions of a buffer to another, one launch each: what a sum of all buffers costs a program that has them
/// on one device. `None`: it is not wanted, or wrong.
fn additions(
    bench: &Bench,
    times: u32,
    input: &[u8],
    outcome: &mut Outcome,
) -> Result<Option<f64>, GangError> {
    let mut case = Case::team(TeamKernel::Add, 1, input.len() / 4, DataType::F32, ReduceOp::Sum);
    let full = (processors(bench)?.min(MAX_TEAM_BLOCKS as u32), 512);
    (case.shape.blocks, case.shape.threads) = bench.scale(full, (2, 3));
    if !bench.wants(&case.name()) {
        return Ok(None);
    }
    let mut gang = case.gang(bench)?;
    gang.write(0, input)?;
    gang.launch()?;
    gang.wait()?;
    let found = gang.read(0)?;
    let number = |bytes: &[u8]| f32::from_le_bytes(bytes.try_into().expect("four bytes"));
    let before = f32::from_le_bytes([Gang::UNWRITTEN; 4]);
    let mut pairs = found.chunks_exact(4).zip(input.chunks_exact(4));
    if !pairs.all(|(found, given)| number(found) == before + number(given)) {
        outcome.fail(format!("{}: wrong sums", case.name()));
        return Ok(None);
    }
    let act = || (0..times).try_for_each(|_| gang.launch());
    Ok(Some(microseconds(&gang, bench, bench.scale((7, 3), (1, 1)), act)?))
}

fn case(ranks: u32, bytes: usize, kernel: usize, blocks: u32, threads: u32) -> Case {
    let (count, dtype, op) = (bytes / 4, DataType::F32, ReduceOp::Sum);
    let mut case = match kernel {
        0 => Case::team(TeamKernel::TwoShot, ranks, count, dtype, op),
        1 => Case::team(TeamKernel::OneShot, ranks, count, dtype, op),
        2 => Case::plan(plan("twoshot", ranks), count, dtype, op),
        4 => Case::team(TeamKernel::Staged, ranks, count, dtype, op),
        5 => Case::plan(plan("oneshot", ranks), count, dtype, op),
        _ => Case::plan(plan("ring", ranks), count, dtype, op),
    };
    let lanes = case.plan.programs.iter().map(|program| program.lanes.len()).max().unwrap_or(1).max(1) as u32;
    let tile_bytes = (bytes / ranks as usize / blocks as usize).clamp(64, 128 << 10).next_multiple_of(64);
    let geometry = Geometry {
        slot_bytes: tile_bytes,
        credits: least_credits(&case.plan, 4),
        shares: (blocks / lanes).max(1),
    };
    (case.geometry, case.tile_bytes) = (geometry, tile_bytes);
    (case.shape.blocks, case.shape.threads) = (blocks, threads);
    case
}

/// Small whole numbers, of which every sum is exact.
fn numbers(bytes: usize) -> Vec<u8> {
    (0..bytes as u32 / 4).flat_map(|i| ((i.wrapping_mul(2_654_435_761) >> 22) as f32).to_le_bytes()).collect()
}

/// The ends of the buffers of the first rank and the last: n times what all have given.
fn wrong(gang: &Gang, input: &[u8], ranks: u32) -> Result<Option<String>, GangError> {
    if let Some(blame) = gang.failures().first() {
        return Ok(Some(blame.to_string()));
    }
    let part = input.len().min(1 << 20);
    for rank in [0, gang.ranks() - 1] {
        for range in [0..part, input.len() - part..input.len()] {
            let found = gang.read_part(rank, range.clone())?;
            let number = |bytes: &[u8]| f32::from_le_bytes(bytes.try_into().expect("four bytes"));
            let pairs = found.chunks_exact(4).zip(input[range].chunks_exact(4));
            let bad = pairs.filter(|(found, given)| number(found) != number(given) * ranks as f32).count();
            if bad > 0 {
                return Ok(Some(format!("rank {rank}: {bad} elements at its ends are wrong")));
            }
        }
    }
    Ok(None)
}
