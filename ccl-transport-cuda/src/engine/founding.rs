//! How ranks bring their devices together.

use super::arena::{self, Arena};
use super::hosts::{Hosts, Seat};
use super::multicast::{self, Multicast};
use super::prepared::Terms;
use super::registered::Registrations;
use super::saying::told;
use super::store::Store;
use super::watch::{LINES, Watch};
use super::{Draft, Ends, Engine, Parts, Place, Share, State, Wanted};
use crate::driver::Attribute;
use crate::kernels::Kernels;
use crate::program::{self, Member, Team, stage_room};
use crate::sharing::{Handle, Mapped, Process};
use crate::sys::{DeviceMemory, Event, Primary, Stream};
use ccl_core::config::{Config, Multicast as Choice};
use ccl_core::plan::{Placement, Rank};
use ccl_core::{Error, Result};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// Blocks of a rank, where the user has not said how many and there are no more than two for each other rank: so many lanes has a group
/// of transfers in which all send to all.
const BLOCKS: u32 = 32;

/// Bytes of the longest piece that goes to another host, where the user has not said how long slots are: links take it at least.
const LONGEST: usize = 64 << 10;

/// Bytes of what every rank says before it comes to multicast: how many blocks it has, and the handle of its memory.
const WORDS: usize = 4 + Handle::BYTES;

/// A rank that has its own memory, and not yet that of the others.
pub struct Founding {
    rank: Rank,
    primary: Arc<Primary>,
    kernels: Arc<Kernels>,
    config: Config,
    placement: Placement,
    hosts: Hosts,
    blocks: u32,
    memory: DeviceMemory,
    /// What peers open it by, kept as long as it.
    handle: Handle,
    arena: Arena,
    draft: Option<Draft>,
    /// What it says of multicast, and what has come of it.
    able: Vec<u8>,
    multicast: Multicast,
}

impl Founding {
    /// For `rank`, on a device. `places` has the devices of all ranks, `hosts` a number for the host of each, and `placement` what plans make
    /// of that. Zeroes the memory and, where ranks share the device, loads all kernels, so that none of this waits for a call later.
    pub fn new(
        primary: &Arc<Primary>,
        rank: Rank,
        places: &[Place],
        (hosts, placement): (&[u32], Placement),
        config: &Config,
    ) -> Result<Founding> {
        let device = primary.driver().device(primary.ordinal())?;
        let processors = device.attribute(Attribute::Multiprocessors)?.unwrap_or(1).unsigned_abs();
        // Of the device where most ranks are: all launch alike, and a block of any kernel is sure to fit on a multiprocessor.
        let crowd = |place: &Place| places.iter().filter(|other| *other == place).count() as u32;
        let most = places.iter().map(crowd).max().unwrap_or(1);
        let wanted = config.device_blocks.unwrap_or(BLOCKS.max(2 * (places.len() as u32).saturating_sub(1)));
        let blocks = wanted.min(processors / most.max(1));
        // An all-to-all has a lane for each rank.
        if (blocks as usize) < places.len() {
            let ranks = places.len();
            let what = format!(
                "{blocks} thread blocks for each of {ranks} ranks, where {most} share a device of {processors} multiprocessors"
            );
            return Err(Error::unsupported(
                what,
                "let fewer ranks share a device, or raise RDMACCL_DEVICE_BLOCKS",
            ));
        }
        let hosts = Hosts::new(rank, hosts);
        let arena = Arena::new(&hosts, blocks, config.slot_bytes.unwrap_or(LONGEST));
        let draft = || Draft::new(primary, hosts.away().collect(), [arena.links, arena.transfers]);
        let draft = hosts.are_several().then(draft);
        let mut memory = DeviceMemory::for_others(primary, arena.bytes)?;
        let handle = memory.export()?;
        let stream = Stream::new(primary)?;
        stream.clear(&mut memory, 0..arena.zeroed)?;
        stream.synchronize()?;
        let kernels = Kernels::of_device(primary, config.device_code.as_deref());
        // A device or a driver that does not take one of them takes none.
        let least = program::Module::named("finish").expect("it is among the modules");
        kernels.function(least, "rdmaccl_finish")?;
        if places.get(rank as usize).is_some_and(|own| crowd(own) > 1) {
            kernels.load()?;
        }
        let able = multicast::able(primary, &hosts, places, config, &kernels);
        let able = told(
            able.as_ref().map(|grain| grain.to_le_bytes()).as_ref().map(|word| &word[..]).map_err(|why| *why),
        );
        Ok(Founding {
            rank,
            primary: Arc::clone(primary),
            kernels,
            config: config.clone(),
            placement,
            hosts,
            blocks,
            memory,
            handle,
            arena,
            draft,
            able,
            multicast: Multicast::Off,
        })
    }

    /// The wires to other hosts, if there are any, whose slots are still to be made.
    pub fn draft(&self) -> Option<&Draft> {
        self.draft.as_ref()
    }

    /// The number of the device.
    pub fn device(&self) -> u32 {
        self.primary.ordinal()
    }

    /// What the other ranks must know.
    pub fn words(&self) -> Vec<u8> {
        let mut words = self.blocks.to_le_bytes().to_vec();
        words.extend(self.handle.to_bytes());
        words.extend(&self.able);
        words
    }

    /// Finds out with all others whether they have multicast, before they [meet](Founding::meet); `words` are those of all. Without it, they meet
    /// all the same.
    pub fn join_multicast(&mut self, words: &[Vec<u8>], share: Share<'_>) -> Result<()> {
        let said: Vec<_> =
            words.iter().map(|words| words.get(WORDS..).unwrap_or_default().to_vec()).collect();
        let found = Multicast::found(&self.primary, self.rank, &said, share)?;
        let (rank, device) = (self.rank, self.device());
        self.multicast = match found {
            _ if self.config.multicast == Choice::Off => Multicast::Off,
            Multicast::Without(why) => {
                tracing::warn!(target: "cuda", rank, device, %why, "no multicast, though RDMACCL_NVLS=on");
                Multicast::Without(why)
            }
            found => {
                tracing::info!(target: "cuda", rank, device, "one-shot all-reduces are made by multicast");
                found
            }
        };
        Ok(())
    }

    /// The engine, with the words of all ranks, and the slots of the wires to other hosts for each rank there.
    pub fn meet(self, words: &[Vec<u8>], slots: Vec<Ends>, wanted: Wanted) -> Result<Engine> {
        let Founding {
            rank,
            primary,
            kernels,
            config,
            placement,
            hosts,
            blocks,
            memory,
            handle: _,
            arena,
            draft,
            able: _,
            multicast,
        } = self;
        let gate = draft.map(|draft| draft.build(slots)).transpose()?.map(Arc::new);
        if words.len() != hosts.ranks() {
            return Err(Error::invalid(format!("words of {} ranks", words.len()), "give those of all ranks"));
        }
        let exported = self.handle;
        let mut peers = Vec::new();
        let (mut bases, mut has_strangers) = (Vec::new(), false);
        for (peer, theirs) in (0..).zip(words) {
            let own = theirs.get(..WORDS).ok_or_else(|| malformed(peer))?;
            let (count, handle) = own.split_at(4);
            if count != blocks.to_le_bytes() {
                let what = format!("rank {peer} is on a device where another number of blocks fits");
                return Err(Error::unsupported(
                    what,
                    "set RDMACCL_DEVICE_BLOCKS to what fits on all devices",
                ));
            }
            if let Seat::Away(_) = hosts.seat(peer) {
                continue;
            }
            if peer == rank {
                bases.push(memory.address() as u64);
                continue;
            }
            let handle = Handle::from_bytes(handle)?;
            has_strangers |= handle.process != Process::this()?;
            let mapped = Mapped::open(&primary, &handle)?;
            if mapped.len() != arena.bytes {
                return Err(malformed(peer));
            }
            bases.push(mapped.address() as u64);
            peers.push((peer, mapped));
        }
        let watch = Arc::new(Watch::new(&primary, rank, blocks)?);
        let store = Store::new(&primary)?;
        let own = bases[hosts.own() as usize];
        let mut registered = None;
        if !hosts.are_several() {
            let book = Registrations::new(&primary, rank, &bases, arena, has_strangers)?;
            store.write(
                &team(rank, &arena, &bases, book.address(), multicast.places())?,
                own + arena.team as u64,
            )?;
            registered = Some(Arc::new(book));
        }
        for line in LINES {
            store.write(&watch.logs(line), own + arena.logs[line as usize] as u64)?;
        }
        let terms = Terms {
            rank,
            placement,
            blocks,
            threads: config.device_threads,
            tile_bytes: config.tile_bytes,
            arena,
            has_multicast: multicast.places().is_some(),
        };
        let over = Event::new(&primary)?;
        let told_of: Arc<str> = multicast.text().into();
        let state = State {
            ready: HashMap::new(),
            captured: HashMap::new(),
            outdated: Vec::new(),
            wanted,
            parts: Some(Parts {
                over,
                store,
                peers,
                has_strangers,
                watch: Arc::clone(&watch),
                registered: registered.clone(),
                _gate: gate.clone(),
                _multicast: multicast,
                _memory: (memory, exported),
                _kernels: Arc::clone(&kernels),
            }),
            last: None,
            broken: None,
        };
        Ok(Engine {
            primary,
            kernels,
            terms,
            hosts,
            bases,
            gate,
            watch,
            registered,
            multicast: told_of,
            state: Mutex::new(state),
        })
    }
}

/// The words of a team of ranks with these arenas.
fn team(
    rank: Rank,
    arena: &Arena,
    bases: &[u64],
    book: u64,
    multicast: Option<[u64; 2]>,
) -> Result<Vec<u64>> {
    let members = bases.iter().map(|base| Member {
        flags: base + arena.flags(),
        stage: base + arena.stage(),
        packets: base + arena.packets(),
        offers: base + arena.offers(),
        ..Member::default()
    });
    let [everywhere, received] = multicast.unwrap_or_default();
    let team = Team {
        rank,
        room: stage_room(bases.len()) as u64,
        packet_room: arena::PACKET_ROOM as u64,
        epochs: bases[rank as usize] + arena.epochs(),
        agreed: bases[rank as usize] + arena.agreed as u64,
        book,
        members: members.collect(),
        everywhere,
        received,
    };
    team.words().map_err(|error| Error::unsupported(error.to_string(), "use fewer ranks"))
}

fn malformed(peer: Rank) -> Error {
    let what = format!("what rank {peer} says of its device memory");
    Error::invalid(what, "use the same version of the library on all ranks")
}
