//! One library's side of the comparison: a process of its own, whose threads are the ranks.

use super::sys::{Comm, Id, Library};
use crate::Options;
use crate::bench::median;
use ccl_core::Error;
use ccl_transport_cuda::driver::Driver;
use ccl_transport_cuda::{DeviceMemory, Event, Graph, Primary, Stream};
use serde_json::{Value, json};
use std::sync::{Arc, Barrier};
use std::time::Duration;

/// Calls on buffers that were just registered that are not timed.
const OPENING: usize = 20;

fn said(error: Error) -> String {
    error.to_string()
}

/// How a call is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// So many in a graph, which is replayed.
    Graph(usize),
    /// So many calls behind each other.
    Calls(usize),
    /// The same on memory that the rank has registered.
    Registered(usize),
}

/// The lines of the table; those on registered buffers come last.
fn lines(small: bool, ranks: usize) -> Vec<(How, usize)> {
    let mut lines = all_lines(small);
    // One rank has no kernels in rdmaccl: what goes through the host is not recorded, and takes no registered memory.
    lines.retain(|(how, _)| ranks > 1 || matches!(how, How::Calls(_)));
    lines
}

fn all_lines(small: bool) -> Vec<(How, usize)> {
    let of = |how: fn(usize) -> How, sizes: &[usize], row: usize| -> Vec<(How, usize)> {
        sizes.iter().map(|bytes| (how(if small { 2 } else { row }), *bytes)).collect()
    };
    if small {
        let short = of(How::Graph, &[8, 1024], 2);
        return [short, of(How::Calls, &[8, 1 << 14], 2), of(How::Registered, &[1 << 14], 2)].concat();
    }
    const MIB: usize = 1 << 20;
    [
        of(How::Graph, &[8, 1024, 16 << 10, 64 << 10], 50),
        of(How::Calls, &[8, 16 << 10, 512 << 10], 50),
        of(How::Calls, &[4 * MIB, 64 * MIB, 256 * MIB], 5),
        of(How::Registered, &[4 * MIB, 64 * MIB, 256 * MIB], 5),
    ]
    .concat()
}

/// What all ranks share.
struct Shared {
    library: Library,
    id: Id,
    ranks: usize,
    small: bool,
    together: Barrier,
}

/// Prints one line of JSON: the version and the lines, or `failed`.
pub(crate) fn run(options: &Options, library: &str, prefix: &str, ranks: usize) -> ! {
    let (word, code) = match measure(options, library, prefix, ranks) {
        Ok(found) => (found, 0),
        Err(why) => (json!({"failed": why}), 1),
    };
    println!("{word}");
    std::process::exit(code)
}

fn measure(options: &Options, file: &str, prefix: &str, ranks: usize) -> Result<Value, String> {
    let driver = Driver::open(std::env::var("RDMACCL_CUDA").ok().as_deref()).map_err(said)?;
    let devices = super::devices(driver, options, ranks)?;
    let primaries = devices.iter().map(|device| device.primary()).collect::<Result<Vec<_>, _>>();
    let primaries = primaries.map_err(said)?;
    let library = Library::open(file, prefix).map_err(|why| format!("it cannot be opened: {why}"))?;
    let version = library.version()?;
    // A library may ask who the thread is on.
    let entered = primaries[0].enter().map_err(said)?;
    let id = library.id()?;
    drop(entered);
    let shared = Shared { library, id, ranks, small: options.small, together: Barrier::new(ranks) };
    let all = std::thread::scope(|scope| {
        let started = primaries.iter().enumerate().map(|(rank, primary)| {
            let shared = &shared;
            scope.spawn(move || match play(shared, primary, rank) {
                Ok(times) => times,
                // The other ranks may wait for this one for ever, so all end.
                Err(why) => {
                    println!("{}", json!({"version": version, "failed": format!("rank {rank}: {why}")}));
                    std::process::exit(1)
                }
            })
        });
        let started: Vec<_> = started.collect();
        started
            .into_iter()
            .map(|rank| rank.join().map_err(|_| "a rank panicked"))
            .collect::<Result<Vec<_>, _>>()
    })?;
    let lines = lines(options.small, ranks).into_iter().enumerate().map(|(line, (how, bytes))| {
        let mut told = json!({"bytes": bytes, "how": name(how)});
        match together(all.iter().map(|rank| &rank[line])) {
            Ok(time) => told["us"] = json!(time),
            Err(why) => told["not"] = json!(why),
        }
        told
    });
    Ok(json!({"version": version, "ranks": ranks, "lines": lines.collect::<Vec<_>>()}))
}

fn name(how: How) -> &'static str {
    match how {
        How::Graph(_) => "graph",
        How::Calls(_) => "calls",
        How::Registered(_) => "registered",
    }
}

/// Each time's slowest rank; of them the median.
fn together<'a>(ranks: impl Iterator<Item = &'a Result<Vec<f64>, String>>) -> Result<f64, String> {
    let ranks: Vec<&Vec<f64>> =
        ranks.map(|rank| rank.as_ref().map_err(Clone::clone)).collect::<Result<_, _>>()?;
    let times = ranks.first().map_or(0, |first| first.len());
    let slowest = (0..times).map(|time| ranks.iter().map(|rank| rank[time]).fold(0.0, f64::max));
    Ok(median(slowest.collect()))
}

/// A rank: each line's times in microseconds, or why it has none. An error is the end of all.
fn play(
    shared: &Shared,
    primary: &Arc<Primary>,
    rank: usize,
) -> Result<Vec<Result<Vec<f64>, String>>, String> {
    let _entered = primary.enter().map_err(said)?;
    let lines = lines(shared.small, shared.ranks);
    let longest = lines.iter().map(|(_, bytes)| *bytes).max().unwrap_or(0);
    let stream = Stream::new(primary).map_err(said)?;
    let mut send = DeviceMemory::alloc(primary, longest).map_err(said)?;
    let mut receive = DeviceMemory::alloc(primary, longest).map_err(said)?;
    let input: Vec<u8> = (0..longest / 4).flat_map(|i| number(i, rank).to_le_bytes()).collect();
    send.write(0, &input).map_err(said)?;
    let mut comm = shared.library.join(shared.ranks, shared.id, rank)?;
    let mut is_registered = false;
    let mut all = Vec::new();
    for (how, bytes) in lines {
        if matches!(how, How::Registered(_)) && !is_registered {
            comm.register(&send)?;
            comm.register(&receive)?;
            is_registered = true;
            // A library may make the first calls on new buffers in another way, until its ranks have opened them.
            for _ in 0..if shared.small { 1 } else { OPENING } {
                shared.together.wait();
                comm.all_reduce(&send, &receive, bytes / 4, &stream)?;
                stream.synchronize().map_err(said)?;
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        stream.fill(&mut receive, 0xff).and_then(|()| stream.synchronize()).map_err(said)?;
        let timed = time(shared, &comm, (&send, &receive), (how, bytes), (primary, &stream));
        all.push(match timed {
            Ok(times) => wrong(&receive, bytes, shared.ranks).map_or(Ok(times), Err),
            Err(why) => Err(why),
        });
    }
    comm.forget()?;
    // Nobody leaves while another one's call is on its way.
    shared.together.wait();
    Ok(all)
}

/// A line: microseconds of a call, by this rank's stream, as often as it is repeated.
fn time(
    shared: &Shared,
    comm: &Comm<'_>,
    (send, receive): (&DeviceMemory, &DeviceMemory),
    (how, bytes): (How, usize),
    (primary, stream): (&Arc<Primary>, &Stream),
) -> Result<Vec<f64>, String> {
    let call = || comm.all_reduce(send, receive, bytes / 4, stream);
    let (How::Graph(row) | How::Calls(row) | How::Registered(row)) = how;
    // What a library makes at its first call of a kind is made before anything is recorded.
    shared.together.wait();
    call()?;
    stream.synchronize().map_err(said)?;
    shared.together.wait();
    let recorded = || {
        (0..row)
            .try_for_each(|_| call())
            .map_err(|why| Error::unsupported(why, "make the calls without a graph"))
    };
    let graph =
        matches!(how, How::Graph(_)).then(|| Graph::record(stream, recorded)).transpose().map_err(said)?;
    let act = |times: usize| match &graph {
        Some(graph) => graph.launch(stream).map_err(said),
        None => (0..times).try_for_each(|_| call()),
    };
    let event = || Event::timed(primary).map_err(said);
    let (from, to) = (event()?, event()?);
    let mut times = Vec::new();
    for _ in 0..if shared.small { 1 } else { 7 } {
        shared.together.wait();
        act(1)?;
        from.record(stream).map_err(said)?;
        act(row)?;
        to.record(stream).and_then(|()| stream.synchronize()).map_err(said)?;
        times.push(f64::from(from.until(&to).map_err(said)?) * 1e3 / row as f64);
    }
    Ok(times)
}

/// Small whole numbers, of which every sum is exact.
fn number(at: usize, rank: usize) -> f32 {
    ((at as u32).wrapping_mul(2_654_435_761) >> 22) as f32 + rank as f32
}

/// What is wrong at both ends of the result.
fn wrong(receive: &DeviceMemory, bytes: usize, ranks: usize) -> Option<String> {
    let part = bytes.min(1 << 20);
    let of_ranks = (ranks * (ranks - 1) / 2) as f32;
    for at in [0, bytes - part] {
        let mut found = vec![0; part];
        if let Err(error) = receive.read(at, &mut found) {
            return Some(error.to_string());
        }
        let sums = found.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().expect("four bytes")));
        let bad = sums.enumerate().filter(|(i, sum)| *sum != number(at / 4 + i, 0) * ranks as f32 + of_ranks);
        let bad = bad.count();
        if bad > 0 {
            return Some(format!("wrong: {bad} of {} sums at an end", part / 4));
        }
    }
    None
}
