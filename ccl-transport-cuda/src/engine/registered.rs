//! Buffers of the program that the kernels of all ranks reach.
//!
//! A rank that registers memory writes its handle to a *board* in its arena, and tells its own kernels. Nobody else is told: before a call
//! kernels say to each other in which registrations its buffers are, and one that does not reach a peer's says so to its host, which then
//! opens it. Whoever opens memory notes it first in the owner's arena, where the owner looks before it lets the memory go. `docs/gpu-kernels.md`
//! has the protocol.

use super::arena::Arena;
use crate::program::{MAX_TEAM, book};
use crate::sharing::{Handle, Mapped};
use crate::sys::{Primary, Relaxed, Stream, Words};
use ccl_core::plan::Rank;
use ccl_core::{Error, Result};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Words of a handle.
const HANDLE: usize = Handle::BYTES / 8;
/// Words that are copied at a time at most.
const COPIED: usize = MAX_TEAM * book::REGISTERED;

/// This rank's registrations, and what it has of those of its peers. All ranks are on one host, so that their numbers are their places.
pub(super) struct Registrations {
    primary: Arc<Primary>,
    rank: Rank,
    bases: Vec<u64>,
    arena: Arena,
    has_strangers: bool,
    /// What kernels read and write: [`book`].
    words: Words,
    /// Until it is closed.
    state: Mutex<Option<State>>,
}

struct State {
    copier: Copier,
    own: [Option<Own>; book::REGISTERED],
    /// How many there were.
    count: u64,
    /// By peer and place.
    opened: BTreeMap<(Rank, usize), Opened>,
    /// Whether nothing more is opened.
    has_let_go: bool,
}

/// A registration.
struct Own {
    number: u64,
    address: usize,
    len: usize,
    stage: Stage,
    /// Keeps a descriptor open.
    _handle: Handle,
}

/// How far its end is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Offered,
    /// Kernels of this rank offer it to peers no more.
    Withdrawn,
    /// Peers see that it is none any more.
    Taken,
}

/// A peer's registration.
struct Opened {
    number: u64,
    /// None where it could not be opened.
    _mapped: Option<Mapped>,
}

impl Registrations {
    /// With the arenas of all ranks.
    pub(super) fn new(
        primary: &Arc<Primary>,
        rank: Rank,
        bases: &[u64],
        arena: Arena,
        has_strangers: bool,
    ) -> Result<Registrations> {
        let copier = Copier { stream: Stream::new(primary)?, words: Words::new(primary, COPIED)? };
        let state = State {
            copier,
            own: std::array::from_fn(|_| None),
            count: 0,
            opened: BTreeMap::new(),
            has_let_go: false,
        };
        Ok(Registrations {
            primary: Arc::clone(primary),
            rank,
            bases: bases.to_vec(),
            arena,
            has_strangers,
            words: Words::new(primary, book::WORDS)?,
            state: Mutex::new(Some(state)),
        })
    }

    /// Where the device sees the book.
    pub(super) fn address(&self) -> u64 {
        self.words.address(0)
    }

    /// How many calls were made on registered buffers.
    pub(super) fn made(&self) -> u64 {
        self.words.load(book::MADE)
    }

    fn state(&self) -> MutexGuard<'_, Option<State>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn base(&self, rank: Rank) -> u64 {
        self.bases[rank as usize]
    }

    /// Registers memory. What has no place among the registrations goes through slots as before.
    pub(super) fn add(&self, address: usize, len: usize) -> Result<()> {
        let handle = Handle::of(&self.primary, address, len)?;
        if self.has_strangers && !handle.opens_elsewhere() {
            let what = format!(
                "registering {len} bytes at {address:#x}, which the driver gives to no other process"
            );
            let remedy =
                "register memory of cudaMalloc, or of cuMemCreate with file descriptors; or leave it out";
            return Err(Error::unsupported(what, remedy));
        }
        let mut state = self.state();
        let Some(State { copier, own, count, .. }) = &mut *state else { return Ok(()) };
        let Some(place) = own.iter().position(Option::is_none) else {
            let (rank, most) = (self.rank, book::REGISTERED);
            tracing::info!(target: "cuda", rank, address, len, most, "too many registrations: this one changes nothing");
            return Ok(());
        };
        *count += 1;
        let number = *count * book::REGISTERED as u64 + place as u64;
        let _relaxed = Relaxed::new(&self.primary)?;
        let bytes = handle.to_bytes();
        let words: [u64; HANDLE] =
            std::array::from_fn(|at| u64::from_le_bytes(std::array::from_fn(|byte| bytes[8 * at + byte])));
        copier.write(&words, self.base(self.rank) + self.arena.handle(place))?;
        copier.write(&[number], self.base(self.rank) + self.arena.number(place))?;
        self.words.store(book::own(place) + 1, address as u64);
        self.words.store(book::own(place) + 2, (address + len) as u64);
        self.words.store(book::own(place), number);
        own[place] = Some(Own { number, address, len, stage: Stage::Offered, _handle: handle });
        Ok(())
    }

    /// What is registered.
    pub(super) fn all(&self) -> Vec<(usize, usize)> {
        let state = self.state();
        let own = state.iter().flat_map(|state| state.own.iter().flatten());
        own.map(|own| (own.address, own.len)).collect()
    }

    /// From now on calls are not made on this memory.
    pub(super) fn withdraw(&self, address: usize, len: usize) {
        let mut state = self.state();
        if let Some((place, own)) = state.as_mut().and_then(|state| state.find(address, len))
            && own.stage == Stage::Offered
        {
            self.words.store(book::own(place), 0);
            own.stage = Stage::Withdrawn;
        }
    }

    /// Tells peers that what was withdrawn is no registration any more, when no kernel of this rank runs that may have offered it; true if none
    /// has it, but those that are `gone`. Then it is forgotten.
    pub(super) fn is_left(&self, address: usize, len: usize, gone: &[Rank]) -> Result<bool> {
        let mut state = self.state();
        let Some(state) = &mut *state else { return Ok(true) };
        let Some((place, Own { number, stage, .. })) = state.find(address, len) else { return Ok(true) };
        let number = *number;
        let _relaxed = Relaxed::new(&self.primary)?;
        let base = self.base(self.rank);
        if *stage == Stage::Withdrawn {
            *stage = Stage::Taken;
            state.copier.write(&[0], base + self.arena.number(place))?;
        }
        let holds = state.copier.read(base + self.arena.hold(0, 0), COPIED)?;
        let goodbyes = state.copier.read(base + self.arena.goodbye(0), self.bases.len())?;
        let has_left = |peer: Rank| {
            let at = peer as usize;
            holds[at * book::REGISTERED + place] != number || goodbyes[at] != 0 || gone.contains(&peer)
        };
        let is_left = (0..self.bases.len() as Rank).all(has_left);
        if is_left {
            state.own[place] = None;
        }
        Ok(is_left)
    }

    /// Closes what peers have taken back, and opens what kernels have asked for.
    pub(super) fn attend(&self) -> Result<()> {
        let missing: Vec<(Rank, u64)> = (0..self.bases.len() as Rank)
            .flat_map(|peer| [0, 1].map(|which| (peer, book::missing(peer) + which)))
            .filter_map(|(peer, at)| Some((peer, self.asked(at)?)))
            .collect();
        let mut state = self.state();
        let has_work =
            |state: &&mut State| !(state.has_let_go || missing.is_empty() && state.opened.is_empty());
        let Some(state) = state.as_mut().filter(has_work) else { return Ok(()) };
        let _relaxed = Relaxed::new(&self.primary)?;
        self.close_taken(state)?;
        for (peer, number) in missing {
            let place = number as usize % book::REGISTERED;
            if state.opened.get(&(peer, place)).is_none_or(|opened| opened.number != number) {
                self.open(state, peer, number)?;
            }
        }
        Ok(())
    }

    /// What a kernel has written at a word, if anything. It may write it again.
    fn asked(&self, at: usize) -> Option<u64> {
        let number = self.words.load(at);
        if number == 0 {
            return None;
        }
        self.words.store(at, 0);
        Some(number)
    }

    fn close_taken(&self, state: &mut State) -> Result<()> {
        let State { copier, opened, .. } = state;
        let mut peers: Vec<Rank> = opened.keys().map(|(peer, _)| *peer).collect();
        peers.dedup();
        for peer in peers {
            let numbers = copier.read(self.base(peer) + self.arena.number(0), book::REGISTERED)?;
            let is_taken = |place: usize, opened: &Opened| numbers[place] != opened.number;
            let taken = opened.iter().filter(|((of, place), opened)| *of == peer && is_taken(*place, opened));
            for key in taken.map(|(key, _)| *key).collect::<Vec<_>>() {
                // The owner's calls on it are over, and with them this rank's part of them.
                self.words.store(book::reached(key.0, key.1), 0);
                opened.remove(&key);
                self.hold(copier, key, 0)?;
            }
        }
        Ok(())
    }

    /// Tells a peer which of its registrations this rank has at a place.
    fn hold(&self, copier: &Copier, (peer, place): (Rank, usize), number: u64) -> Result<()> {
        copier.write(&[number], self.base(peer) + self.arena.hold(self.rank, place))
    }

    fn open(&self, state: &mut State, peer: Rank, number: u64) -> Result<()> {
        let State { copier, opened, .. } = state;
        let place = number as usize % book::REGISTERED;
        // First this, then the look: the owner takes the number away first, and then looks.
        self.hold(copier, (peer, place), number)?;
        if copier.read(self.base(peer) + self.arena.number(place), 1)? != [number] {
            return self.hold(copier, (peer, place), 0);
        }
        let words = copier.read(self.base(peer) + self.arena.handle(place), HANDLE)?;
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let mapped = Handle::from_bytes(&bytes).and_then(|handle| Mapped::open(&self.primary, &handle));
        let mapped = match mapped {
            Ok(mapped) => {
                self.words.store(book::reached(peer, place) + 1, mapped.address() as u64);
                self.words.store(book::reached(peer, place), number);
                Some(mapped)
            }
            Err(error) => {
                tracing::warn!(target: "cuda", rank = self.rank, peer, %error, "a peer's registered buffer is not reached");
                self.hold(copier, (peer, place), 0)?;
                None
            }
        };
        opened.insert((peer, place), Opened { number, _mapped: mapped });
        Ok(())
    }

    /// Closes all that is open for good, when no kernel of this rank runs any more. Owners wait for it.
    pub(super) fn let_go(&self) {
        let mut state = self.state();
        let Some(State { copier, opened, has_let_go, .. }) = &mut *state else { return };
        *has_let_go = true;
        for ((peer, place), mapped) in std::mem::take(opened) {
            self.words.store(book::reached(peer, place), 0);
            drop(mapped);
            // An owner that cannot be told waits for this rank's goodbye.
            let _ = self.hold(copier, (peer, place), 0);
        }
    }

    /// The same, and lets go of everything else.
    pub(super) fn close(&self) {
        self.let_go();
        *self.state() = None;
    }
}

impl State {
    fn find(&mut self, address: usize, len: usize) -> Option<(usize, &mut Own)> {
        let is_it = |own: &Own| (own.address, own.len) == (address, len);
        let place = self.own.iter().position(|own| own.as_ref().is_some_and(is_it))?;
        Some((place, self.own[place].as_mut()?))
    }
}

/// Copies words from and to arenas, and waits until they are there.
struct Copier {
    stream: Stream,
    words: Words,
}

impl Copier {
    fn write(&self, words: &[u64], to: u64) -> Result<()> {
        words.iter().enumerate().for_each(|(at, word)| self.words.store(at, *word));
        self.stream.copy_words(self.words.address(0), to, words.len())?;
        self.stream.synchronize()
    }

    fn read(&self, from: u64, count: usize) -> Result<Vec<u64>> {
        self.stream.copy_words(from, self.words.address(0), count)?;
        self.stream.synchronize()?;
        Ok((0..count).map(|at| self.words.load(at)).collect())
    }
}
