//! Where everything of a gang lies in its memory, and the words that say so.

use super::blame::peer_of;
use super::{Blame, GangError, Shape, TeamKernel, Work};
use crate::program::{
    Call, Direction, MAX_TEAM_BLOCKS, Member, Program, Report, Rule, TEAM_FLAGS, Team, Wire, stage_room,
};
use crate::sys::Words;
use std::collections::BTreeMap;
use std::ops::Range;

/// What a gang plays, kept for as long as it lives.
pub(super) enum Assembly {
    Plan { programs: Vec<Program>, in_place: bool, misaligned: usize },
    Team { kernel: TeamKernel, ranks: usize, count: u64, bytes: usize, shape: Shape },
}

/// A rank's buffers.
type Buffers = (Range<usize>, Range<usize>);

/// Where things begin, in bytes from the beginning of the memory.
pub(super) struct Places {
    bytes: usize,
    calls: usize,
    finishes: usize,
    ranks: Vec<RankPlaces>,
    /// Of links, by sender, receiver and channel: the sender's and the receiver's wire, as offsets.
    links: BTreeMap<(u32, u32, u16), [Wire; 2]>,
    /// Each rank's call, with addresses, when they are known.
    words: Vec<[u64; Call::WORDS]>,
}

#[derive(Default)]
struct RankPlaces {
    buffers: Buffers,
    program: usize,
    wires: usize,
    scratch: usize,
    team: usize,
    epochs: usize,
    flags: usize,
    stage: usize,
    packets: usize,
}

const CALL: usize = 8 * Call::WORDS;

impl Assembly {
    pub(super) fn new(work: Work<'_>, shape: &Shape) -> Result<Assembly, GangError> {
        Ok(match work {
            Work::Plan(programs) => Assembly::Plan {
                programs: programs.to_vec(),
                in_place: shape.in_place,
                misaligned: shape.misaligned,
            },
            Work::Team { kernel, ranks, count, bytes } => {
                assert!(shape.blocks as usize <= MAX_TEAM_BLOCKS, "more blocks than a team has flags for");
                Assembly::Team { kernel, ranks: ranks as usize, count, bytes, shape: *shape }
            }
        })
    }

    pub(super) fn ranks(&self) -> usize {
        match self {
            Assembly::Plan { programs, .. } => programs.len(),
            Assembly::Team { ranks, .. } => *ranks,
        }
    }

    /// Of each rank: as many as the rank that needs most.
    pub(super) fn blocks(&self) -> u32 {
        match self {
            Assembly::Plan { programs, .. } => {
                programs.iter().map(Program::workers).max().unwrap_or(1).max(1) as u32
            }
            Assembly::Team { shape, .. } => shape.blocks,
        }
    }

    /// Bytes of one rank's part of the staging memory.
    fn room(&self) -> usize {
        match self {
            Assembly::Team { kernel: TeamKernel::OneShot | TeamKernel::Packets, bytes, .. } => {
                bytes.next_multiple_of(64).max(64)
            }
            // As much as the library has, so that longer calls go in rounds.
            Assembly::Team { kernel: TeamKernel::Staged, bytes, ranks, .. } => {
                (2 * bytes.div_ceil(*ranks)).next_multiple_of(128).clamp(128, stage_room(*ranks))
            }
            _ => 0,
        }
    }

    pub(super) fn places(&self) -> Places {
        let mut room = Room(0);
        let ranks = self.ranks();
        let (calls, finishes) = (room.take(ranks * CALL), room.take(ranks * CALL));
        let mut all: Vec<RankPlaces> = Vec::new();
        for rank in 0..ranks {
            let (in_place, misaligned, input, output) = match self {
                Assembly::Plan { programs, in_place, misaligned } => {
                    let (input, output) = programs[rank].buffer_bytes();
                    (*in_place, *misaligned, input, output)
                }
                Assembly::Team { shape, bytes, .. } => (shape.in_place, shape.misaligned, *bytes, *bytes),
            };
            let mut buffer = |len: usize| {
                let start = room.take(len + misaligned) + misaligned;
                start..start + len
            };
            let from = buffer(input);
            let into = if in_place { from.clone() } else { buffer(output) };
            let mut places = RankPlaces { buffers: (from, into), ..RankPlaces::default() };
            match self {
                Assembly::Plan { programs, .. } => {
                    places.program = room.take(8 * programs[rank].words().len());
                    places.wires = room.take(32 * programs[rank].ends().len());
                    places.scratch = room.take(programs[rank].scratch_bytes());
                }
                Assembly::Team { kernel, .. } => {
                    places.team = room.take(8 * Team::WORDS);
                    places.epochs = room.take(4 * MAX_TEAM_BLOCKS);
                    places.flags = room.take(8 * TEAM_FLAGS);
                    let parts = 2 * ranks * self.room();
                    let is_staged = matches!(kernel, TeamKernel::OneShot | TeamKernel::Staged);
                    places.stage = room.take(if is_staged { parts } else { 0 });
                    let packets = Team::packet_bytes(self.room());
                    places.packets = room.take(if *kernel == TeamKernel::Packets { packets } else { 0 });
                }
            }
            all.push(places);
        }
        let links = match self {
            Assembly::Plan { programs, .. } => links(programs, &mut room),
            Assembly::Team { .. } => BTreeMap::new(),
        };
        Places { bytes: room.0, calls, finishes, ranks: all, links, words: Vec::new() }
    }

    /// All words of the memory of each rank, which begins at its base. Where all ranks share one memory, their bases are one.
    pub(super) fn image(
        &self,
        places: &mut Places,
        bases: &[u64],
        words: &Words,
        rule: &Rule,
        shape: &Shape,
    ) -> Result<Vec<(usize, Vec<u64>)>, GangError> {
        places.words.clear();
        let mut image = Vec::new();
        let blocks = self.blocks() as usize;
        for (rank, of) in places.ranks.iter().enumerate() {
            let at = |offset: usize| bases[rank] + offset as u64;
            let (from, into) = &of.buffers;
            let mut call = Call {
                program: 0,
                wires: 0,
                input: at(from.start),
                output: at(into.start),
                scratch: 0,
                team: 0,
                alarm: words.address(0),
                reports: words.address(1 + rank * blocks * Report::WORDS),
                limit: shape.limit.as_nanos() as u64,
                count: 0,
                tag: shape.tag,
                log: 0,
                rule: *rule,
                when: 0,
                wanted: 0,
            };
            match self {
                Assembly::Plan { programs, .. } => {
                    (call.program, call.wires, call.scratch) = (at(of.program), at(of.wires), at(of.scratch));
                    image.push((of.program, programs[rank].words().to_vec()));
                    let wires = programs[rank].ends().iter().flat_map(|end| {
                        let own = rank as u32;
                        let (from, to, side) = match end.direction {
                            Direction::Send => (own, end.peer, 0),
                            Direction::Receive => (end.peer, own, 1),
                        };
                        let Wire { slots, flags, credit, count } =
                            places.links[&(from, to, end.channel)][side];
                        let (sender, receiver) = (bases[from as usize], bases[to as usize]);
                        let count = bases[rank] + count;
                        Wire {
                            slots: receiver + slots,
                            flags: receiver + flags,
                            credit: sender + credit,
                            count,
                        }
                        .words()
                    });
                    image.push((of.wires, wires.collect()));
                }
                Assembly::Team { count, .. } => {
                    (call.team, call.count) = (at(of.team), *count);
                    let members = places.ranks.iter().zip(bases).map(|(of, base)| Member {
                        flags: base + of.flags as u64,
                        stage: base + of.stage as u64,
                        packets: base + of.packets as u64,
                        input: base + of.buffers.0.start as u64,
                        output: base + of.buffers.1.start as u64,
                        offers: 0,
                    });
                    let room = self.room() as u64;
                    let team = Team {
                        rank: rank as u32,
                        room,
                        packet_room: room,
                        epochs: at(of.epochs),
                        agreed: 0,
                        book: 0,
                        members: members.collect(),
                        everywhere: 0,
                        received: 0,
                    };
                    image.push((of.team, team.words()?));
                }
            }
            image.push((places.calls + rank * CALL, call.words().to_vec()));
            if let Some(finish) = call.finish_words(into.len() as u64) {
                image.push((places.finishes + rank * CALL, finish.to_vec()));
            }
            places.words.push(call.words());
        }
        Ok(image)
    }

    /// Whom a block waited for.
    pub(super) fn blame(&self, rank: usize, block: usize, report: Report) -> Blame {
        let peer = match self {
            Assembly::Plan { programs, .. } => peer_of(&programs[rank], &report),
            Assembly::Team { .. } => Some(report.operand),
        };
        Blame { rank, block, report, peer }
    }
}

/// The memory of all links, each made once for both of its ends.
fn links(programs: &[Program], room: &mut Room) -> BTreeMap<(u32, u32, u16), [Wire; 2]> {
    let mut links = BTreeMap::new();
    for (rank, program) in (0..).zip(programs) {
        let geometry = program.geometry();
        let (shares, credits) = (geometry.shares as usize, geometry.credits as usize);
        for end in program.ends().iter().filter(|end| end.direction == Direction::Receive) {
            let mut take = |bytes| room.take(bytes) as u64;
            let slots = take(shares * credits * geometry.slot_bytes);
            let (flags, credit) = (take(8 * shares * credits), take(8 * shares));
            let mut side = || Wire { slots, flags, credit, count: take(4 * shares) };
            links.insert((end.peer, rank, end.channel), [side(), side()]);
        }
    }
    links
}

/// Bytes that are given out, each piece on lines of its own.
struct Room(usize);

impl Room {
    fn take(&mut self, bytes: usize) -> usize {
        let start = self.0;
        // Nothing has a place of its own, too: buffers that begin at one place are one.
        self.0 = (start + bytes.max(1)).next_multiple_of(256);
        start
    }
}

impl Places {
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn buffers(&self, rank: usize) -> Buffers {
        self.ranks[rank].buffers.clone()
    }

    /// Where a rank's call begins.
    pub(super) fn call(&self, rank: usize) -> u64 {
        (self.calls + rank * CALL) as u64
    }

    /// Where the call begins that divides its sums.
    pub(super) fn finish(&self, rank: usize) -> u64 {
        (self.finishes + rank * CALL) as u64
    }

    pub(super) fn call_words(&self, rank: usize) -> [u64; Call::WORDS] {
        self.words[rank]
    }
}
