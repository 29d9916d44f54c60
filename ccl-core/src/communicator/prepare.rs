//! Preparing a call: choosing, planning, proving, connecting and binding. Done once per kind of call.

use super::patience::Room;
use super::plans::{Caching, PlanKey, Prepared};
use super::routes::Routes;
use super::{Call, Communicator, fingerprint};
use crate::ReduceOp;
use crate::algorithms::{self, Algorithm, Exchange};
use crate::config::{Config, SimdChoice, VerifyPolicy};
use crate::cost::{Candidates, Choice, Wish};
use crate::engine::{Blocks, Layout, ReferFrom, Schedule, Streams};
use crate::error::{Error, ErrorKind, Result};
use crate::flight::{About, Reason};
use crate::kernels::{Level, Reducer};
use crate::plan::{Collective, Program, Rank, Spec};
use crate::transport::{self, Offers};
use crate::verify::{self, Limits, Shortcuts};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Instant;

/// How a call would be done.
#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    /// The algorithm.
    pub algorithm: &'static str,
    /// The longest piece in bytes.
    pub tile_bytes: usize,
    /// Pieces per chunk.
    pub tiles: usize,
    /// What the cost function expects, in nanoseconds.
    pub predicted_ns: f64,
    /// Threads of this rank that share it.
    pub threads: u32,
}

/// Largest communicator for which `auto` proves built-in plans at run time. The project's tests prove every
/// one up to this size; above it the proof would be felt at start-up.
const PROVE_UP_TO: u32 = 64;

/// The error of a call that names a rank that there is not, after words for what it is to be.
pub(super) fn stranger(what: &str, rank: Rank, ranks: u32) -> Error {
    Error::invalid(
        format!("{what} {rank} in a communicator of {ranks}"),
        format!("give a rank from 0 to {}", ranks - 1),
    )
}

/// From which sizes memory is referred to, as measured between two cores with 1 MiB of cache each, with a core for each
/// rank and with up to four ranks on each: there who waits for a release gives the core away once more. Ranks that are all on hosts of their own share no caches: there a copy has only to take
/// longer than the network's last acknowledgement, for which a call waits that has sent references.
fn refer_from(is_crowded: bool, hosts: Hosts) -> ReferFrom {
    let quick = match hosts {
        Hosts::One if !is_crowded => 3 << 9,
        _ => 8 << 10,
    };
    ReferFrom {
        piece: quick,
        piece_of_one_step: if is_crowded { 16 << 10 } else { quick },
        written_buffer: if hosts == Hosts::OneEach { 64 << 10 } else { 2 << 20 },
        rooted_buffer: if is_crowded { 256 << 10 } else { 8 << 10 },
        scattered_buffer: if is_crowded { 512 << 10 } else { 8 << 10 },
    }
}

/// The same for a send, which is over when its receiver has read what is referred to.
pub(super) fn transfer_refers_from(is_crowded: bool) -> ReferFrom {
    // As between hosts: with a slot a sender goes on sooner.
    let quick = refer_from(false, Hosts::Several);
    ReferFrom { piece_of_one_step: if is_crowded { 64 << 10 } else { quick.piece_of_one_step }, ..quick }
}

/// Bytes of a chunk of which a sender that receives nothing writes a share itself, where it has a core of its own. Between two ranks on two cores of an Intel Xeon broadcasts of
/// 1 MiB and more take half of the time with it or less, of 384 KiB 0.77; of 256 KiB, which are two pieces, up to a half more: backwards, the second waits for the first.
pub(super) const SHARED_FROM: usize = 384 << 10;

/// On how many hosts ranks are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hosts {
    /// All on one.
    One,
    /// On several, some of them together.
    Several,
    /// Each on one of its own.
    OneEach,
}

/// What this process has proved, for ranks that are threads and for communicators that come and go; with what may
/// travel by reference.
static PROVED: LazyLock<Mutex<Proved>> = LazyLock::new(Mutex::default);

type Proved = HashMap<(Spec, &'static str), Arc<Shortcuts>>;

impl Communicator {
    /// Uses this algorithm for every collective that it can do; `None` lets the cost function choose. All
    /// ranks must set the same.
    pub fn set_algorithm(&mut self, name: Option<&str>) -> Result<()> {
        self.algorithm = name.map(known).transpose()?.map(Algorithm::name);
        self.plans.forget_calls();
        Ok(())
    }

    /// Cuts every chunk into pieces of at most so many bytes; `None` lets the cost function choose. All ranks must set
    /// the same.
    pub fn set_tile_bytes(&mut self, tile_bytes: Option<usize>) {
        self.config.tile_bytes = tile_bytes;
        self.plans.forget_calls();
    }

    /// How a call would be done. Makes no connection.
    pub fn explain(&mut self, call: &Call, in_place: bool) -> Result<Explanation> {
        let choice = self.choose(call, in_place)?;
        let layout = self.layout(call, &choice)?;
        Ok(Explanation {
            algorithm: choice.algorithm.name(),
            tile_bytes: choice.tile_bytes,
            tiles: layout.tiles(),
            predicted_ns: choice.predicted_ns,
            threads: self.shares_of(&choice, &layout, in_place),
        })
    }

    /// Works out everything about a call that does not change from one time to the next.
    #[cold]
    pub(super) fn prepare(&mut self, call: &Call, in_place: bool) -> Result<usize> {
        let choice = self.choose(call, in_place)?;
        let layout = self.layout(call, &choice)?;
        let reducer = self.reducer(call)?;
        let algorithm = choice.algorithm.name();
        let fingerprint = fingerprint::of_call(self.whole(), call, algorithm, choice.tile_bytes);
        let about = about(call, algorithm, &layout, fingerprint);
        let shares = self.shares_of(&choice, &layout, in_place);
        let schedule = self.recorded(&[(about, self.sequence + self.unnumbered)], |this| {
            this.schedule(call, choice.algorithm, shares)
        })?;
        tracing::debug!(?call, algorithm, choice.tile_bytes, choice.predicted_ns, shares, "prepared");
        let caching = self.caching(&layout, in_place);
        let shared = match shares {
            1 => None,
            _ => Some(self.crew.tasks(schedule, &layout, reducer, caching)?),
        };
        let task = self.plans.task(schedule, layout, reducer, caching)?;
        Ok(self.plans.add(call, in_place, Prepared { schedule, task, shared, about }))
    }

    /// A call whose blocks differ. Nothing is kept but the schedule, since the lengths are seldom the same again.
    pub(super) fn prepare_uneven(
        &mut self,
        call: &Call,
        blocks: &Blocks,
        in_place: bool,
    ) -> Result<Prepared> {
        // Where all ranks know all lengths, they know the mean; where not, there is nothing to choose.
        let (known, only) = match call.collective {
            Collective::AllGather => (&blocks.output[..], None),
            Collective::ReduceScatter => (&blocks.input[..], None),
            _ => (&[][..], Some(&Exchange as &'static dyn Algorithm)),
        };
        if in_place && call.collective == Collective::AllToAll && blocks.input != blocks.output {
            return Err(Error::invalid(
                "an all_to_all in place whose blocks lie differently in the send and the receive buffer",
                "give both the same counts and displacements, or two buffers",
            ));
        }
        let sum = known.iter().fold(0usize, |sum, block| sum.saturating_add(block.len()));
        let even = Call { count: sum / self.ranks as usize, ..*call };
        let choice = match only {
            // A rank whose block is empty cannot tell in place from apart, and all must choose alike.
            None => self.choose(&even, true)?,
            Some(algorithm) => {
                self.check(&even)?;
                Choice { algorithm, tile_bytes: self.tile_bytes(call.dtype), predicted_ns: 0.0 }
            }
        };
        let spec = self.spec(call.collective, call.root, choice.algorithm)?;
        let layout = Layout::uneven(&spec, self.rank, blocks, call.dtype, choice.tile_bytes)?;
        let reducer = self.reducer(call)?;
        let call = Call { count: 0, ..*call };
        let fingerprint =
            fingerprint::of_call(self.whole(), &call, choice.algorithm.name(), choice.tile_bytes);
        let fingerprint = fingerprint::of_blocks(fingerprint, known);
        let about = about(&call, choice.algorithm.name(), &layout, fingerprint);
        let schedule = self.recorded(&[(about, self.sequence + self.unnumbered)], |this| {
            this.schedule(&even, choice.algorithm, 1)
        })?;
        let caching = self.caching(&layout, in_place);
        Ok(Prepared::unshared(schedule, self.plans.task(schedule, layout, reducer, caching)?, about))
    }

    fn choose(&mut self, call: &Call, in_place: bool) -> Result<Choice> {
        let Call { collective, count, dtype, root, .. } = *call;
        self.check(call)?;
        let bytes = count.checked_mul(dtype.size()).ok_or_else(|| {
            Error::invalid(format!("{count} elements of type {dtype}"), "fewer than 2^63 bytes")
        })?;
        let only = self.only(collective)?;
        let candidates = match self.plans.candidates.entry((collective, root)) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => new.insert(Candidates::new(collective, self.placement, root)?),
        };
        let tile_bytes = self.config.tile_bytes.map(|bytes| bytes.max(dtype.size()));
        candidates.choose(&self.model, bytes, in_place, Wish { algorithm: only, tile_bytes })
    }

    /// What a call leaves to the caches, and what it writes past them.
    pub(super) fn caching(&self, layout: &Layout, in_place: bool) -> Caching {
        let (input, output) = (layout.input_bytes(), layout.output_bytes());
        let bytes = if in_place { input.max(output) } else { input + output };
        let (forgets, keeps) = (self.model.forgets(bytes), self.model.keeps(bytes));
        let streams = self.model.streams(bytes).then_some(Streams { in_place, forgets, keeps });
        // Over a network pieces are under way for longer.
        let lead = self.model.lead().filter(|_| self.model.local_ranks == self.ranks);
        Caching { lead, streams }
    }

    /// The operator's kernel; that of a collective which does not reduce only copies.
    fn reducer(&self, call: &Call) -> Result<Reducer> {
        let op = if call.collective.reduces() { call.op } else { ReduceOp::Sum };
        Ok(Reducer::at(self.level, call.dtype, op, self.ranks)?)
    }

    /// Whether this can be a collective's call at all.
    fn check(&self, call: &Call) -> Result<()> {
        let Call { collective, root, .. } = *call;
        if collective == Collective::SendRecv {
            return Err(Error::invalid("a transfer made as a collective", "send or receive in a group"));
        }
        if root >= self.ranks {
            return Err(stranger("root", root, self.ranks));
        }
        if root != 0 && !collective.rooted() {
            return Err(Error::invalid(format!("root {root} for {collective}"), "it has no root: give 0"));
        }
        Ok(())
    }

    /// The algorithm that the caller or the configuration wants. One that was named for all collectives
    /// counts for those that it can do.
    pub(super) fn only(&self, collective: Collective) -> Result<Option<&'static str>> {
        let able = |algorithm: &dyn Algorithm| algorithm.parts(collective, self.placement).is_some();
        if let Some(name) = self.algorithm {
            return Ok(able(known(name)?).then_some(name));
        }
        Ok(self.config.algorithm_for(collective, self.placement))
    }

    /// What a plan is of, beside the call.
    fn whole(&self) -> (u64, u32) {
        (self.identity, self.placement.hosts)
    }

    fn layout(&self, call: &Call, choice: &Choice) -> Result<Layout> {
        let spec = self.spec(call.collective, call.root, choice.algorithm)?;
        Layout::new(&spec, self.rank, call.count, call.dtype, choice.tile_bytes)
    }

    fn spec(&self, collective: Collective, root: Rank, algorithm: &dyn Algorithm) -> Result<Spec> {
        let parts = algorithm.parts(collective, self.placement).ok_or_else(|| {
            let what = format!("algorithm {} for {collective} on {} ranks", algorithm.name(), self.ranks);
            Error::unsupported(what, "choose another, or let the cost function choose")
        })?;
        Ok(Spec::placed(collective, self.placement, root, parts))
    }

    /// The bound schedule of a plan; made, proved and connected the first time, and the first time that it is shared out.
    fn schedule(&mut self, call: &Call, algorithm: &'static dyn Algorithm, shares: u32) -> Result<usize> {
        let Call { collective, root, .. } = *call;
        let key = PlanKey { collective, root, algorithm: algorithm.name() };
        let known = self.plans.schedule(&key);
        if let Some(index) = known.filter(|&index| shares == 1 || self.crew.knows(index)) {
            return Ok(index);
        }
        let spec = self.spec(collective, root, algorithm)?;
        let shortcuts = self.prove(&spec, algorithm)?;
        let program = algorithm.program(&spec, self.rank);
        let hosts = if self.placement.hosts == 1 {
            Hosts::One
        } else if self.routes.are_all_apart() {
            Hosts::OneEach
        } else {
            Hosts::Several
        };
        let is_crowded = self.room == Room::Crowded;
        let refer_from = refer_from(is_crowded, hosts);
        let bind = |routes: &mut Routes| {
            let rank = routes.rank();
            let mut schedule = Schedule::bind(&spec, rank, &program, routes)?;
            if let Some(shortcuts) = &shortcuts {
                schedule.allow_references(&program, shortcuts.refers(rank), refer_from)?;
                match routes.offers() {
                    Offers::None => {}
                    Offers::Written => {
                        schedule.allow_offers(&program, shortcuts.result_offers(rank), 0)?;
                        if !is_crowded {
                            schedule.allow_offers(&program, shortcuts.share_offers(rank), SHARED_FROM)?;
                            schedule.allow_shares(&program);
                        }
                    }
                    Offers::All => schedule.allow_offers(&program, shortcuts.offers(rank), 0)?,
                }
            }
            Ok::<_, Error>(schedule)
        };
        let index = match known {
            Some(index) => index,
            None => {
                self.connect(&program)?;
                let schedule = bind(&mut self.routes)?;
                self.plans.add_schedule(key, schedule)
            }
        };
        if shares > 1 {
            self.connect_crew(&program)?;
            let bound = self.crew.routes_mut().map(bind).collect::<Result<Vec<_>>>()?;
            bound.into_iter().enumerate().for_each(|(strand, bound)| self.crew.learn(strand, index, bound));
        }
        Ok(index)
    }

    /// Opens the links of a program.
    pub(super) fn connect(&mut self, program: &Program) -> Result<()> {
        self.connecting(|this, exchange| this.routes.connect(program, exchange))
    }

    /// The same for the threads that share calls of it.
    fn connect_crew(&mut self, program: &Program) -> Result<()> {
        self.connecting(|this, exchange| {
            this.crew.routes_mut().try_for_each(|routes| routes.connect(program, exchange))
        })
    }

    /// Connects. Peers that do not come, or come for other links, are judged as in a call: in their eyes it has begun.
    fn connecting(
        &mut self,
        connect: impl FnOnce(&mut Self, &mut dyn transport::Exchange) -> Result<()>,
    ) -> Result<()> {
        let (start, deadline) = (Instant::now(), self.deadline());
        let number = self.sequence + self.unnumbered;
        let Some(mut bootstrap) = self.bootstrap.take() else { return Ok(()) };
        let connected = connect(self, &mut bootstrap.exchange(deadline));
        self.bootstrap = Some(bootstrap);
        connected.map_err(|error| {
            let by = self.rank;
            let reason = match error.kind() {
                ErrorKind::Timeout { .. } => Some(Reason::Timeout { by, waited: start.elapsed() }),
                ErrorKind::Transport { peer: Some(peer), .. } => Some(Reason::Mismatch { by, peer: *peer }),
                ErrorKind::PeerLost { peer, .. } if self.health.is_well() => {
                    // Who has hung up without a word is lost, even where the control plane does not know it yet.
                    let left = self.health.who_left([*peer]);
                    left.map(|peer| Reason::Left { by, peer, sequence: number })
                }
                _ => return error,
            };
            let error = reason.and_then(|reason| self.inquire(&reason)).unwrap_or(error);
            self.break_with(error)
        })
    }

    /// What of a plan may travel without a slot; nothing of one that is not proved.
    ///
    /// Kept apart from its caller: it is cold, and the sanitizer's suppressions know it by name.
    #[inline(never)]
    fn prove(&self, spec: &Spec, algorithm: &'static dyn Algorithm) -> Result<Option<Arc<Shortcuts>>> {
        let wanted = match self.config.verify {
            VerifyPolicy::Always => true,
            VerifyPolicy::Auto => spec.ranks <= PROVE_UP_TO,
            VerifyPolicy::Never => false,
        };
        if !wanted {
            return Ok(None);
        }
        let mut proved = PROVED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(shortcuts) = proved.get(&(*spec, algorithm.name())) {
            return Ok(Some(Arc::clone(shortcuts)));
        }
        let started = Instant::now();
        let plan = algorithms::plan(algorithm, spec.collective, spec.placement(), spec.root)
            .ok_or_else(|| Error::unsupported(algorithm.name(), "it has parts but no plan"))?;
        let limits = Limits { credits: self.credits, ..Limits::default() };
        let (_, shortcuts) = verify::verify_shortcuts(&plan, &limits).map_err(|fault| {
            let text = format!("{} for {} on {} ranks: {fault}", plan.algorithm, spec.collective, spec.ranks);
            Error::from(ErrorKind::PlanRejected(text))
        })?;
        tracing::debug!(?spec, algorithm = algorithm.name(), elapsed = ?started.elapsed(), "plan proved");
        let shortcuts = Arc::new(shortcuts);
        proved.insert((*spec, algorithm.name()), Arc::clone(&shortcuts));
        Ok(Some(shortcuts))
    }
}

/// What the flight record says of a collective.
fn about(call: &Call, algorithm: &str, layout: &Layout, fingerprint: u64) -> About {
    let Call { collective, count, dtype, op, root } = *call;
    let bytes = layout.input_bytes().max(layout.output_bytes());
    About::collective((collective, root), (count, dtype, op), algorithm, bytes, fingerprint)
}

/// The kernels that the configuration wants, or the best of this CPU.
pub(super) fn level(config: &Config) -> Result<Level> {
    let level = match config.simd {
        SimdChoice::Auto => return Ok(Level::best()),
        other => {
            other.to_string().parse::<Level>().map_err(|error| Error::unsupported("RDMACCL_SIMD", error))?
        }
    };
    if !level.is_available() {
        return Err(Error::unsupported(
            format!("RDMACCL_SIMD={level} on this CPU"),
            format!("use auto, or at most {}", Level::best()),
        ));
    }
    Ok(level)
}

fn known(name: &str) -> Result<&'static dyn Algorithm> {
    algorithms::by_name(name).ok_or_else(|| {
        let names: Vec<_> = algorithms::all().iter().map(|a| a.name()).collect();
        Error::invalid(format!("algorithm '{name}'"), format!("use one of {}", names.join(", ")))
    })
}
