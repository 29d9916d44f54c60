//! Long calls that several threads of a rank share: the same bits as by one thread, and the same errors.

use ccl::config::{Profile, Threads};
use ccl::cost::Constants;
use ccl::flight::{Page, RankState};
use ccl::{
    Buffers, Call, Collective, Communicator, Config, DataType, ErrorKind, ReduceOp, SharedMemory, UniqueId,
};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// A machine so slow that also short calls are worth sharing, and tiles so short that there is something to share.
fn config(threads: Threads) -> Config {
    let path = std::env::temp_dir().join(format!("rdmaccl-threads-{}.json", std::process::id()));
    let usual = Constants::default();
    let slow = Constants { alpha_ns: 900.0 * usual.alpha_ns, step_ns: 900.0 * usual.step_ns, ..usual };
    let part = path.with_extension(format!("{:?}", std::thread::current().id()));
    std::fs::write(&part, Profile::new(slow).text()).expect("a temporary file");
    std::fs::rename(&part, &path).expect("the same for all tests");
    let mut config = Config::from_env().expect("a right environment");
    config.profile = Some(path.display().to_string());
    config.tile_bytes = Some(512);
    config.slot_bytes = Some(4096);
    config.threads = threads;
    config
}

/// Runs `work` on each rank, a thread each.
fn on_ranks<T: Send>(ranks: u32, config: &Config, work: impl Fn(Communicator) -> T + Sync) -> Vec<T> {
    let id = UniqueId::create(config).expect("an id");
    let join = |rank| {
        let builder = Communicator::builder().rank(rank).size(ranks).unique_id(id).config(config.clone());
        work(builder.build().expect("a communicator"))
    };
    std::thread::scope(|scope| {
        let join = &join;
        let threads: Vec<_> = (0..ranks).map(|rank| scope.spawn(move || join(rank))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

fn value(dtype: DataType, rank: u32, i: usize) -> [u8; 4] {
    let word = (i as u32).wrapping_mul(2_654_435_761) >> 9 ^ rank << 7;
    match dtype {
        DataType::F32 => (word as f32 / 1e3).to_ne_bytes(),
        _ => word.to_ne_bytes(),
    }
}

/// The call's result on this rank, apart or in place, in memory that peers can see or cannot.
fn result(comm: &mut Communicator, call: &Call, in_place: bool, mapped: bool) -> Vec<u8> {
    let (rank, ranks) = (comm.rank(), comm.size());
    let block = call.count * 4;
    let input = block * call.collective.input_blocks(ranks, rank, call.root) as usize;
    let output = block * call.collective.output_blocks(ranks, rank, call.root) as usize;
    let mut memory = if mapped {
        let mut memory = SharedMemory::alloc((input + output).max(1)).expect("memory");
        comm.register(&memory.memory()).expect("it can be shown");
        memory.fill(0xee);
        Memory::Mapped(memory)
    } else {
        Memory::Private(vec![0xee; input + output])
    };
    let bytes = memory.bytes();
    // In place a rank's own block lies where the collective has it; the others' places are the whole buffer.
    let own = match call.collective {
        Collective::AllGather | Collective::Gather if in_place && output > 0 => rank as usize * block,
        _ => 0,
    };
    for (i, word) in bytes[own..own + input].chunks_exact_mut(4).enumerate() {
        word.copy_from_slice(&value(call.dtype, rank, i));
    }
    let into = match call.collective {
        Collective::ReduceScatter | Collective::Scatter if in_place && input > 0 => rank as usize * block,
        _ => 0,
    };
    if in_place {
        comm.run(call, Buffers::in_place(bytes, own..own + input, into..into + output)).expect("a call");
        bytes[into..into + output].to_vec()
    } else {
        let (from, to) = bytes.split_at_mut(input);
        comm.run(call, Buffers::new(from, to)).expect("a call");
        to[..output].to_vec()
    }
}

enum Memory {
    Private(Vec<u8>),
    Mapped(SharedMemory),
}

impl Memory {
    fn bytes(&mut self) -> &mut [u8] {
        match self {
            Memory::Private(bytes) => bytes,
            Memory::Mapped(bytes) => bytes,
        }
    }
}

fn calls() -> Vec<Call> {
    let kinds =
        [(ReduceOp::Sum, DataType::F32), (ReduceOp::Avg, DataType::U32), (ReduceOp::Max, DataType::I32)];
    let mut calls = Vec::new();
    for collective in Collective::ALL {
        for (op, dtype) in kinds {
            for count in [1, 700, 20_003] {
                calls.push(Call { collective, count, dtype, op, root: 0 });
            }
        }
    }
    calls
}

/// Every collective, shared out to as many threads as one says: the bits of one thread.
#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    for ranks in [1, 2, 3] {
        let run = |threads| {
            on_ranks(ranks, &config(Threads::Exactly(threads)), |mut comm| {
                let mut results = Vec::new();
                for call in calls() {
                    let explained = comm.explain(&call, false).expect("a call");
                    // A rank alone has nothing to wait for: its machine's slowness does not show.
                    let is_long = call.count > 10_000 && ranks > 1;
                    assert!(explained.threads == threads || !is_long, "{call:?}: {explained:?}");
                    for (in_place, mapped) in [(false, false), (true, false), (false, true), (true, true)] {
                        results.push(result(&mut comm, &call, in_place, mapped));
                    }
                }
                results
            })
        };
        let by_one = run(1);
        for threads in [2, 3] {
            assert!(run(threads) == by_one, "{ranks} ranks, {threads} threads each");
        }
    }
}

/// A rank may make the call in a group while another makes it by itself.
#[test]
fn a_shared_call_in_a_group_meets_one_by_itself() {
    let sums = on_ranks(3, &config(Threads::Exactly(3)), |mut comm| {
        let mine = vec![i64::from(comm.rank()); 30_001];
        let mut sum = vec![0; mine.len()];
        for _ in 0..20 {
            match comm.rank() {
                0 => comm.batch().all_reduce(&mine, &mut sum, ReduceOp::Sum).run(),
                _ => comm.all_reduce(&mine, &mut sum, ReduceOp::Sum),
            }
            .expect("a sum");
        }
        sum
    });
    assert!(sums.iter().flatten().all(|&sum| sum == 3));
}

/// A call that one rank does not make ends with an error that names it, whatever thread waits for it.
#[test]
fn who_does_not_come_is_named() {
    let done = AtomicU32::new(0);
    let wait_for = |is_so: &dyn Fn() -> bool| {
        let begin = Instant::now();
        while !is_so() {
            assert!(begin.elapsed() < Duration::from_secs(60), "the other ranks");
            std::thread::yield_now();
        }
    };
    let page = || Page::of_process(std::process::id()).expect("one's own process").expect("a page");
    let errors = on_ranks(3, &config(Threads::Exactly(2)), |mut comm| {
        let mine = vec![1i64; 30_001];
        let mut sum = vec![0; mine.len()];
        comm.all_reduce(&mine, &mut sum, ReduceOp::Sum).expect("all are there");
        match comm.rank() {
            // Whose deadline it is: the other one is in its second call.
            0 => {
                let (name, page) = (comm.state().communicator, page());
                let is_there = |state: &RankState| {
                    let sequences = state.running.iter().map(|call| call.sequence);
                    (state.communicator, state.rank) == (name, 2) && sequences.max() == Some(1)
                };
                wait_for(&|| page.states().iter().any(is_there));
                comm.set_timeout(Duration::from_secs(1));
            }
            1 => {
                wait_for(&|| done.load(Ordering::Acquire) == 2);
                return None;
            }
            _ => {}
        }
        let error = comm.all_reduce(&mine, &mut sum, ReduceOp::Sum).expect_err("rank 1 does not come");
        done.fetch_add(1, Ordering::AcqRel);
        Some(error)
    });
    for error in errors.into_iter().flatten() {
        assert!(matches!(error.kind(), ErrorKind::Verdict(_)), "{error}");
        assert!(error.to_string().contains("rank 1 "), "{error}");
    }
}

/// Ranks that would share calls out differently would meet on different links.
#[test]
fn ranks_must_agree_on_the_number() {
    let id = UniqueId::create(&config(Threads::Auto)).expect("an id");
    let join = |rank: u32| {
        let config = config(Threads::Exactly(rank + 1));
        Communicator::builder().rank(rank).size(2).unique_id(id).config(config).build()
    };
    let joined = std::thread::scope(|scope| {
        let join = &join;
        [0, 1].map(|rank| scope.spawn(move || join(rank))).map(|thread| thread.join().expect("no panic"))
    });
    for error in joined.into_iter().map(|joined| joined.expect_err("they differ")) {
        assert!(error.to_string().contains("threads 1"), "{error}");
    }
}
