//! Calls: made ready, then put on a stream.

use super::alone::Copied;
use super::hosts::Seat;
use super::prepared::{NO_PLAN, Placed, Prepared};
use super::{Engine, Parts, State, Task};
use super::{store, transfers};
use crate::driver::Kind;
use crate::program::{self, Call as Told, Direction, End, Launch, MAX_TEAM_BLOCKS, Verdict, Wire};
use crate::sys::{Function, Residency, Stream};
use ccl_core::communicator::{Call, Operation, What};
use ccl_core::engine::Blocks;
use ccl_core::kernels::Buffers;
use ccl_core::plan::Collective;
use ccl_core::{Error, Result};
use std::sync::Arc;

/// Calls that are kept ready; with more, they are prepared anew.
const MOST_READY: usize = 4096;

/// Calls that are put on a stream together.
pub struct Ready {
    caller: Stream,
    is_captured: bool,
    work: Vec<Work>,
}

enum Work {
    /// One launch makes them.
    Launch { placed: Arc<Placed>, input: u64, output: u64, count: u64 },
    /// Those of a rank alone, which are copies.
    Copies(Vec<Copied>),
}

impl Engine {
    /// Prepares calls that are made together, on memory that the device reaches, for a stream: sends and receives, which are one launch, come
    /// before collectives. What may be refused is refused here, and of several communicators all are made ready before the first launch:
    /// what the driver does for one might wait for the kernel of another. `has_pinned` is whether some of the memory is the host's.
    pub fn ready(&self, stream: usize, operations: &[Operation<'_>], has_pinned: bool) -> Result<Ready> {
        let _entered = self.primary.enter()?;
        let caller = Stream::borrowed(&self.primary, stream)?;
        let is_captured = caller.is_capturing()?;
        let (mut transfers, mut collectives) = (Vec::new(), Vec::new());
        for operation in operations {
            let buffers = operation.buffers();
            match operation.what() {
                What::Send(transfer) => transfers.push((Direction::Send, *transfer, buffers)),
                What::Receive(transfer) => transfers.push((Direction::Receive, *transfer, buffers)),
                What::Collective(call) => collectives.push((Task::Even(*call), call.count, buffers)),
                What::Uneven(call, blocks) => {
                    lies_alike(call, blocks, &buffers)?;
                    let call = Call { count: 0, ..*call };
                    collectives.push((Task::Uneven(call, (**blocks).clone()), 0, buffers));
                }
            }
        }
        let mut state = self.state();
        let mut work = Vec::with_capacity(collectives.len() + 1);
        if !transfers.is_empty() {
            let ranks = (self.terms.rank, self.terms.placement.ranks);
            let legs = transfers::legs(ranks, &transfers, |at, len| self.address(at, len, has_pinned))?;
            work.push(match self.on_stream(transfers::copies(&legs), has_pinned)? {
                Some(copies) => Work::Copies(copies),
                None => {
                    let placed = self.placed(&mut state, Task::Transfers(legs), is_captured)?;
                    Work::Launch { placed, input: 0, output: 0, count: 0 }
                }
            });
        }
        for (task, count, buffers) in collectives {
            let (input, output) = (buffers.input(), buffers.output());
            let input = self.address(input.as_ptr().addr(), input.len(), has_pinned)?;
            let output = self.address(output.as_mut_ptr().addr(), output.len(), has_pinned)?;
            let copy = Copied::of(&task, &self.terms, &buffers, [input, output])?;
            work.push(match self.on_stream(copy.map(|copy| vec![copy]), has_pinned)? {
                Some(copies) => Work::Copies(copies),
                None => {
                    let placed = self.placed(&mut state, task, is_captured)?;
                    placed.call.check(&buffers)?;
                    Work::Launch { placed, input, output, count: count as u64 }
                }
            });
        }
        Ok(Ready { caller, is_captured, work })
    }

    /// These copies, if a rank that is alone may leave all of them to the driver.
    fn on_stream(&self, copies: Option<Vec<Copied>>, has_pinned: bool) -> Result<Option<Vec<Copied>>> {
        let Some(copies) = copies.filter(|_| self.terms.placement.ranks == 1) else { return Ok(None) };
        for copy in copies.iter().filter(|_| has_pinned) {
            if !copy.is_on_stream(self.primary.driver())? {
                return Ok(None);
            }
        }
        Ok(Some(copies))
    }

    /// Where the device finds a buffer.
    fn address(&self, at: usize, len: usize, has_pinned: bool) -> Result<u64> {
        if has_pinned && len > 0 && self.primary.driver().kind(at)? == Kind::Pinned {
            return self.primary.driver().seen(&self.primary, at);
        }
        Ok(at as u64)
    }

    fn placed(&self, state: &mut State, task: Task, is_captured: bool) -> Result<Arc<Placed>> {
        let known = if is_captured { &state.captured } else { &state.ready };
        if let Some(placed) = known.get(&task) {
            return Ok(Arc::clone(placed));
        }
        let wanted = |call: &Call| {
            let at = Collective::ALL.iter().position(|known| *known == call.collective);
            at.and_then(|at| state.wanted[at])
        };
        let prepared = match &task {
            Task::Even(call) => Prepared::even(call, wanted(call), &self.terms)?,
            Task::Uneven(call, blocks) => Prepared::uneven(call, blocks, wanted(call), &self.terms)?,
            Task::Transfers(legs) => transfers::prepare(legs, &self.terms)?,
        };
        let (module, kernel) = prepared.kernel;
        let function = self.kernels.function(module, kernel)?;
        let finish = match prepared.rule.finish() {
            None => None,
            Some(_) => {
                let module = program::Module::named("finish").expect("it is among the modules");
                Some(self.kernels.function(module, "rdmaccl_finish")?)
            }
        };
        let mapped = match (prepared.may_be_mapped, program::Module::all_reduce(prepared.rule.family())) {
            (true, Some(module)) => {
                let before = program::Module::named("agree").expect("it is among the modules");
                let (agree, two_shot) = ("rdmaccl_agree", "rdmaccl_two_shot");
                Some([self.kernels.function(before, agree)?, self.kernels.function(module, two_shot)?])
            }
            _ => None,
        };
        let State { ready, captured, parts, .. } = state;
        let Some(parts) = parts else { return Err(closed()) };
        let (mut program, mut wires, mut chunk) = (0, 0, None);
        if let Some(own) = &prepared.program {
            let (code, ends) = (own.words().len(), own.ends().len());
            let all = code + 4 * ends;
            if all > store::CHUNK {
                let what = format!("calls whose program has {all} words");
                return Err(Error::unsupported(what, "make several groups"));
            }
            if parts.store.is_full(all) || ready.len() >= MOST_READY {
                ready.clear();
                self.watch.forget();
            }
            let (at, kept) = parts.store.put(all, &parts.over, |_| {
                let wire = |end| self.wire(end).words();
                own.words().iter().copied().chain(own.ends().iter().flat_map(wire)).collect()
            })?;
            (program, wires, chunk) = (at, at + 8 * code as u64, Some(kept));
        }
        self.watch.learn(&prepared, is_captured);
        let placed =
            Arc::new(Placed { call: prepared, function, finish, mapped, program, wires, _chunk: chunk });
        let known = if is_captured { captured } else { ready };
        known.insert(task, Arc::clone(&placed));
        Ok(placed)
    }

    /// This rank's arena.
    pub(super) fn base(&self) -> u64 {
        self.bases[self.hosts.own() as usize]
    }

    /// The memory of one of its links' ends.
    fn wire(&self, end: &End) -> Wire {
        let arena = &self.terms.arena;
        match (self.hosts.seat(end.peer), &self.gate) {
            (Seat::Away(peer), Some(gate)) => gate.wire(end, peer, self.base() + arena.count_away(peer, end)),
            (Seat::Here(peer) | Seat::Away(peer), _) => arena.wire(self.hosts.own(), peer, end, &self.bases),
        }
    }

    /// Launches calls on their stream, in order, behind those that were launched before. The memory of their buffers stays until the stream has
    /// passed them.
    pub fn launch(&self, ready: Ready) -> Result<()> {
        let _entered = self.primary.enter()?;
        let Ready { caller, is_captured, work } = ready;
        let mut state = self.state();
        if let Some(error) = &state.broken {
            return Err(error.clone());
        }
        let Some(parts) = &state.parts else { return Err(closed()) };
        let stream = if is_captured { None } else { Some(caller.id()?) };
        let is_behind = stream.is_none() || stream == state.last;
        let launched = self.put(parts, &caller, (is_captured, is_behind), &work);
        state.last = stream.or(state.last);
        if let Err(error) = &launched {
            // Perhaps some of the calls are on the stream, and this rank's peers wait for the others.
            state.broken = Some(error.clone());
            self.watch.alarm();
        }
        launched
    }

    /// Where the stream is that of the last calls, it is behind them by itself.
    fn put(
        &self,
        parts: &Parts,
        caller: &Stream,
        (is_captured, is_behind): (bool, bool),
        all: &[Work],
    ) -> Result<()> {
        if !is_behind {
            caller.wait(&parts.over)?;
        }
        for work in all {
            let (placed, input, output, count) = match work {
                Work::Launch { placed, input, output, count } => (placed, input, output, count),
                Work::Copies(copies) => {
                    copies.iter().try_for_each(|copy| copy.put(caller))?;
                    continue;
                }
            };
            let own = self.base();
            let mut told = Told {
                program: placed.program,
                wires: placed.wires,
                input: *input,
                output: *output,
                scratch: own + self.terms.arena.scratch as u64,
                team: own + self.terms.arena.team as u64,
                alarm: self.watch.alarm_address(),
                reports: self.watch.reports_address(),
                // The host ends what takes too long: it knows what its peers do.
                limit: 0,
                count: *count,
                tag: placed.call.tag,
                log: own + self.terms.arena.logs[placed.call.about.line() as usize] as u64,
                rule: placed.call.rule,
                when: 0,
                wanted: 0,
            };
            if let Some(kernels) = &placed.mapped {
                told = self.put_mapped(caller, placed, kernels, told)?;
            }
            let grid = (placed.call.blocks, self.terms.threads);
            let words = Launch::Own(told.words(), placed.call.blocks).words();
            placed.function.launch(caller, words, grid, Residency::Any)?;
            let result = &placed.call.result;
            let told = Told { output: output + result.start as u64, ..told };
            let finish = told.finish_words(result.len() as u64);
            if let (Some(function), Some(words)) = (&placed.finish, finish) {
                let words = Launch::Own(words, placed.call.blocks).words();
                function.launch(caller, words, grid, Residency::Any)?;
            }
        }
        if !is_captured {
            parts.over.record(caller)?;
        }
        Ok(())
    }

    /// Launches what finds out whether a call's buffers are registered, and what makes it then. What the launch of the plan is told, which makes
    /// it otherwise.
    fn put_mapped(
        &self,
        caller: &Stream,
        placed: &Placed,
        [agree, two_shot]: &[Function; 2],
        plan: Told,
    ) -> Result<Told> {
        let when = self.base() + self.terms.arena.agreed as u64;
        let team = Told { tag: plan.tag ^ NO_PLAN, ..plan };
        let before = Told { count: placed.call.result.len() as u64, ..team };
        let words = Launch::Own(before.words(), 1).words();
        agree.launch(caller, words, (1, self.terms.threads), Residency::Any)?;
        let mapped = Told { when, wanted: Verdict::Mapped as u64, ..team };
        let blocks = self.terms.blocks.min(MAX_TEAM_BLOCKS as u32);
        let words = Launch::Own(mapped.words(), blocks).words();
        two_shot.launch(caller, words, (blocks, self.terms.threads), Residency::Any)?;
        Ok(Told { when, wanted: Verdict::ByPlan as u64, ..plan })
    }
}

/// In place each block of an all-to-all goes where the one that comes was.
fn lies_alike(call: &Call, blocks: &Blocks, buffers: &Buffers<'_>) -> Result<()> {
    if call.collective == Collective::AllToAll && buffers.is_in_place() && blocks.input != blocks.output {
        return Err(Error::invalid(
            "an all_to_all in place whose blocks lie differently in the send and the receive buffer",
            "give both the same counts and displacements, or two buffers",
        ));
    }
    Ok(())
}

fn closed() -> Error {
    Error::unsupported("a call on a communicator that is being destroyed", "make a new one")
}
