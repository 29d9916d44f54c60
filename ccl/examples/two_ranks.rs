//! `two_ranks --links shm|ib --iterations N --bytes B`: all-reduces of two ranks, stepped in turn by one thread over links in
//! shared memory, or over the queue pairs of a fake libibverbs. Nothing ever waits, so that every run does exactly the same:
//! what `cargo xtask counts` counts.
//!
//! It prints `begin` before the N counted calls and `end` after them.

// A command-line program talks to people.
#![allow(clippy::print_stdout)]

use ccl_core::algorithms::{Algorithm as _, OneShot};
use ccl_core::engine::{Layout, Progress, Schedule, Task};
use ccl_core::kernels::{Buffers, Level, Reducer};
use ccl_core::plan::Spec;
use ccl_core::transport::{Capabilities, Exchange, Fabric, LinkKey, Transport};
use ccl_core::{Collective, DataType, Error, Rank, ReduceOp, Result};
use ccl_fake_ibverbs::Fake;
use ccl_transport_ibverbs::{IbConfig, IbTransport};
use ccl_transport_shm::{ShmConfig, ShmTransport};
use std::ops::Range;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

const SPEC: Spec = Spec::new(Collective::AllReduce, 2, 0, 1);
/// Calls before the counted ones: more than there are slots to touch for the first time.
const WARM_UP: u64 = 100;
/// Buffers begin on a line, so that copies take the same way through every run.
const LINE: usize = 64;

/// Swaps words with the one peer, through channels.
struct Pipe {
    to: Sender<Vec<u8>>,
    from: Receiver<Vec<u8>>,
}

impl Exchange for Pipe {
    fn swap(&mut self, blobs: &[(Rank, Vec<u8>)]) -> Result<Vec<Vec<u8>>> {
        let gone = |_| Error::invalid("swapping words with a rank that gave up", "see its error");
        blobs.iter().try_for_each(|(_, blob)| self.to.send(blob.clone())).map_err(|_| gone(()))?;
        blobs.iter().map(|_| self.from.recv().map_err(|_| gone(()))).collect()
    }

    fn deadline(&self) -> Instant {
        Instant::now() + Duration::from_secs(60)
    }
}

/// One rank: its links, its program, its call and its memory.
struct Member<F: ?Sized> {
    transport: Box<F>,
    schedule: Schedule,
    task: Arc<Task>,
    send: Vec<u8>,
    recv: Vec<u8>,
}

impl<F: Fabric + ?Sized> Member<F> {
    fn join<T: Transport>(
        (mut transport, boxed): (T, fn(T) -> Box<F>),
        rank: Rank,
        bytes: usize,
        mut pipe: Pipe,
    ) -> Result<Member<F>> {
        let links = [LinkKey { from: 0, to: 1, channel: 0 }, LinkKey { from: 1, to: 0, channel: 0 }];
        transport.connect(&links, &mut pipe)?;
        let schedule = Schedule::bind(&SPEC, rank, &OneShot.program(&SPEC, rank), &mut transport)?;
        let Capabilities { slot_bytes, .. } = transport.capabilities();
        let layout = Layout::new(&SPEC, rank, bytes / size_of::<f32>(), DataType::F32, slot_bytes)?;
        let reducer = Reducer::new(DataType::F32, ReduceOp::Sum, SPEC.ranks)?;
        let task = Arc::new(schedule.task(layout, reducer)?);
        let value = rank as f32 + 1.0;
        let send = on_a_line((0..bytes / size_of::<f32>()).flat_map(|_| value.to_ne_bytes()), bytes);
        Ok(Member {
            transport: boxed(transport),
            schedule,
            task,
            send,
            recv: on_a_line(std::iter::empty(), bytes),
        })
    }

    /// Whether the call is done, which begins with this.
    fn dash(&mut self, sequence: u64) -> Result<bool> {
        let buffers = buffers(&self.task, &self.send, &mut self.recv);
        let begun =
            self.schedule.dash(&self.task, (sequence, sequence), 0, &mut *self.transport, &buffers)?;
        Ok(begun == Progress::Done)
    }

    /// Whether the call is done.
    fn step(&mut self) -> Result<bool> {
        let buffers = buffers(&self.task, &self.send, &mut self.recv);
        Ok(self.schedule.step(&mut *self.transport, &buffers)? == Progress::Done)
    }
}

/// What a call reads and writes.
fn buffers<'a>(task: &Task, send: &'a [u8], recv: &'a mut [u8]) -> Buffers<'a> {
    let (bytes, at) = (task.layout().input_bytes(), line_of(recv));
    Buffers::new(&send[line_of(send)..][..bytes], &mut recv[at..][..bytes])
}

/// Where the first whole line of a buffer begins.
fn line_of(buffer: &[u8]) -> usize {
    buffer.as_ptr().align_offset(LINE)
}

/// A buffer whose `bytes` from [`line_of`] on are `values`, and then zero.
fn on_a_line(values: impl Iterator<Item = u8>, bytes: usize) -> Vec<u8> {
    let mut buffer = vec![0; bytes + LINE];
    let start = line_of(&buffer);
    buffer[start..].iter_mut().zip(values).for_each(|(byte, value)| *byte = value);
    buffer
}

/// So many calls, one after the other. Instructions are counted inside this function.
#[inline(never)]
fn all_reduces<F: Fabric + ?Sized>(members: &mut [Member<F>; 2], numbers: Range<u64>) -> Result<()> {
    for sequence in numbers {
        all_reduce(members, sequence)?;
    }
    Ok(())
}

fn all_reduce<F: Fabric + ?Sized>(members: &mut [Member<F>; 2], sequence: u64) -> Result<()> {
    let mut done = [false; 2];
    for (member, done) in members.iter_mut().zip(&mut done) {
        *done = member.dash(sequence)?;
    }
    while done != [true; 2] {
        for (member, done) in members.iter_mut().zip(&mut done) {
            *done = *done || member.step()?;
        }
    }
    Ok(())
}

/// The transport of a rank that has a device of its own.
fn over_queue_pairs(rank: Rank) -> Result<IbTransport> {
    let mut config = IbConfig::default();
    config.ib.library = Some(Fake::library().to_string_lossy().into_owned());
    config.ib.hca = ["left", "right"][rank as usize].parse().ok();
    IbTransport::new(rank, SPEC.ranks, &config)
}

fn run<T: Transport + 'static, F: Fabric + Send + ?Sized + 'static>(
    transport: fn(Rank) -> Result<T>,
    boxed: fn(T) -> Box<F>,
    iterations: u64,
    bytes: usize,
) -> std::result::Result<(), Box<dyn std::error::Error>> {
    let (to_first, from_second) = channel();
    let (to_second, from_first) = channel();
    let pipe = Pipe { to: to_first, from: from_first };
    let second = thread::spawn(move || Member::join((transport(1)?, boxed), 1, bytes, pipe));
    let pipe = Pipe { to: to_second, from: from_second };
    let first = Member::join((transport(0)?, boxed), 0, bytes, pipe)?;
    let mut members = [first, second.join().map_err(|_| "the other rank panicked")??];

    println!("kernels {}", Level::best());
    all_reduces(&mut members, 0..WARM_UP)?;
    println!("begin");
    all_reduces(&mut members, WARM_UP..WARM_UP + iterations)?;
    println!("end");

    let sum = 3.0_f32.to_ne_bytes();
    let is_sum = |member: &Member<F>| {
        let mut words = member.recv[line_of(&member.recv)..][..bytes].chunks_exact(sum.len());
        words.all(|word| word == sum)
    };
    if members.iter().all(is_sum) { Ok(()) } else { Err("a wrong sum".into()) }
}

fn option<T: FromStr>(name: &str) -> std::result::Result<T, String> {
    let mut arguments = std::env::args().skip_while(|word| word != name).skip(1);
    let value = arguments.next().and_then(|word| word.parse().ok());
    value.ok_or_else(|| "usage: two_ranks --links shm|ib --iterations N --bytes B".to_string())
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let (links, iterations, bytes) =
        (option::<String>("--links")?, option("--iterations")?, option("--bytes")?);
    match links.as_str() {
        "shm" => {
            let transport = |rank| ShmTransport::new(rank, SPEC.ranks, &ShmConfig::default());
            run(transport, Box::new, iterations, bytes)
        }
        "ib" => {
            let _fake = Fake::pair();
            // Called through a table, as a communicator does.
            run(over_queue_pairs, |t| Box::new(t) as Box<dyn Fabric + Send>, iterations, bytes)
        }
        other => Err(format!("links over {other}: shm and ib are known").into()),
    }
}
