//! What a launch is told, in words: addresses and numbers, as `kernels/program.h` and `kernels/team.h` have them.
//!
//! Nothing here is followed: an address is a number that means something on a device. All words are 64 bits, as the kernels'
//! structures are laid out on every machine that has a GPU; the emulation compares each field's place.

use super::layout::pair;
use super::{ProgramError, Rule};
use ccl_core::Rank;

/// Ranks of a team at most.
pub const MAX_TEAM: usize = 16;
/// Staging memory of a rank, as the library has it.
pub const STAGE_BYTES: usize = 16 << 20;
/// Of that one rank's part in an epoch, among so many ranks, which all have as much.
pub const fn stage_room(ranks: usize) -> usize {
    STAGE_BYTES / 2 / ranks / 128 * 128
}
/// Blocks of a team's rank at most.
pub const MAX_TEAM_BLOCKS: usize = 128;
/// Threads of a block at most: a multiple of 32.
pub const MAX_THREADS: usize = 512;
/// Flags of a rank of a team, 8 bytes each: three moments, two parities, and for each block and rank one.
pub const TEAM_FLAGS: usize = 3 * 2 * MAX_TEAM_BLOCKS * MAX_TEAM;

/// The memory of one end of a link, for all shares one after the other. All of it starts as zeros, and outlives calls.
///
/// The receiver has `slots` and `flags`, the sender has `credit`: each waits for a word of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wire {
    /// Credits × slot bytes for each share.
    pub slots: u64,
    /// A word for each slot.
    pub flags: u64,
    /// A word for each share.
    pub credit: u64,
    /// 4 bytes for each share, of this end alone: pieces sent or received.
    pub count: u64,
}

impl Wire {
    /// Its words.
    pub fn words(&self) -> [u64; 4] {
        [self.slots, self.flags, self.credit, self.count]
    }
}

/// One rank's call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// A program's words.
    pub program: u64,
    /// A wire for each of its ends.
    pub wires: u64,
    /// The send buffer.
    pub input: u64,
    /// The receive buffer.
    pub output: u64,
    /// The program's scratch memory.
    pub scratch: u64,
    /// The rank's team, for kernels that are no plans.
    pub team: u64,
    /// 4 bytes that the host makes other than zero to end all waits.
    pub alarm: u64,
    /// A [`Report`] for each block of the rank, all zeros.
    pub reports: u64,
    /// Nanoseconds after which the kernel gives up; 0 for never.
    pub limit: u64,
    /// Elements, for kernels that are no plans; turns, for those that measure.
    pub count: u64,
    /// In the lower half what the ranks of a call must agree on: a piece carries 24 bits of it, a team's flag 32. In the upper half that by
    /// which [marks](Mark) and [reports](Report) name the call.
    pub tag: u64,
    /// Two words of the device's memory for each block: the address of a [mark](Mark) in the host's, and the number of calls before; or 0.
    pub log: u64,
    /// How contributions are combined.
    pub rule: Rule,
    /// A word that must be `wanted`, or else the launch does nothing; or 0.
    pub when: u64,
    /// See `when`.
    pub wanted: u64,
}

impl Call {
    /// How many words it is.
    pub const WORDS: usize = 19;

    /// Its words.
    pub fn words(&self) -> [u64; Call::WORDS] {
        let [op, factor, turn, shift, flip] = self.rule.words();
        let Call {
            program,
            wires,
            input,
            output,
            scratch,
            team,
            alarm,
            reports,
            limit,
            count,
            tag,
            log,
            when,
            wanted,
            ..
        } = *self;
        [
            program, wires, input, output, scratch, team, alarm, reports, limit, count, tag, log, op, factor,
            turn, shift, flip, when, wanted,
        ]
    }

    /// The words of the call's second launch, which divides what the first has summed: for means of integers, with the kernel
    /// `rdmaccl_finish`. `bytes` is the length of the receive buffer.
    pub fn finish_words(&self, bytes: u64) -> Option<[u64; Call::WORDS]> {
        let (divisor, kind) = self.rule.finish()?;
        let mut words = self.words();
        words[9] = bytes / u64::from(kind & 15);
        (words[12], words[13]) = (pair(kind, 0), divisor.into());
        Some(words)
    }
}

/// The parameter of every kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launch {
    /// Of one rank, in so many blocks.
    Own([u64; Call::WORDS], u32),
    /// Of several ranks of one device, each in so many blocks: the calls are at this address, in the order of the blocks. It
    /// must be a cooperative launch, as ranks wait for each other.
    Gang(u64, u32),
}

impl Launch {
    /// How many words it is.
    pub const WORDS: usize = Call::WORDS + 2;

    /// Its words.
    pub fn words(&self) -> [u64; Launch::WORDS] {
        let (call, gang, blocks) = match *self {
            Launch::Own(call, blocks) => (call, 0, blocks),
            Launch::Gang(calls, blocks) => ([0; Call::WORDS], calls, blocks),
        };
        let mut words = [0; Launch::WORDS];
        words[..Call::WORDS].copy_from_slice(&call);
        (words[Call::WORDS], words[Call::WORDS + 1]) = (gang, blocks.into());
        words
    }
}

/// What a rank of a team knows of the others: ranks that all reach each other's memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Team {
    /// Whose it is.
    pub rank: Rank,
    /// Bytes of each rank's part of a `stage`: whole lines. The longest one-shot call.
    pub room: u64,
    /// Bytes of data in each rank's part of `packets`: multiples of 8. The longest call by packets.
    pub packet_room: u64,
    /// 4 bytes for each of [`MAX_TEAM_BLOCKS`], all zeros at first.
    pub epochs: u64,
    /// Two words of the rank's own, zeros at first: what its ranks have agreed on ([`Verdict`]), and how often on registered buffers.
    pub agreed: u64,
    /// The rank's [`book`] in memory of the host.
    pub book: u64,
    /// Every rank's memory, as this rank's device reaches it.
    pub members: Vec<Member>,
    /// 2 × ranks parts of `room` bytes of every rank at one address, to which kernels store only; or 0.
    pub everywhere: u64,
    /// Where this rank reads its own of them.
    pub received: u64,
}

/// A rank's memory in a team.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Member {
    /// [`TEAM_FLAGS`] words, all zeros at first.
    pub flags: u64,
    /// 2 × ranks parts of `room` bytes.
    pub stage: u64,
    /// [`Team::packet_bytes`], all zeros at first.
    pub packets: u64,
    /// The send buffer of the call at hand; for two-shot calls.
    pub input: u64,
    /// The receive buffer.
    pub output: u64,
    /// Of kernels that agree on buffers: 2 × [`MAX_TEAM`] × 4 words.
    pub offers: u64,
}

/// What ranks have found out before a call of their buffers; 0 is that something went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// A rank has not registered its buffers, or does not reach a peer's.
    ByPlan = 1,
    /// All reach all.
    Mapped = 2,
}

/// Words in memory of the host by which a rank's host and its kernels tell each other of registered buffers. A registration's place is its
/// number modulo [`REGISTERED`](book::REGISTERED), everywhere.
pub mod book {
    use super::MAX_TEAM;

    /// Buffers that a rank has registered at a time at most.
    pub const REGISTERED: usize = 64;
    /// Of a registration of this rank: its number, and where the buffer begins and ends. The number is written last.
    pub const fn own(place: usize) -> usize {
        3 * place
    }
    /// Of a registration of a peer that this rank reaches: its number, which is written last, and the address.
    pub const fn reached(peer: u32, place: usize) -> usize {
        3 * REGISTERED + 2 * (peer as usize * REGISTERED + place)
    }
    /// Numbers of a peer's registrations that calls were on and that are not reached: of a send and a receive buffer. Kernels write them.
    pub const fn missing(peer: u32) -> usize {
        reached(MAX_TEAM as u32, 0) + 2 * peer as usize
    }
    /// How many calls were made on registered buffers. Kernels write it.
    pub const MADE: usize = missing(MAX_TEAM as u32);
    /// All of them.
    pub const WORDS: usize = MADE + 1;
}

impl Team {
    /// How many words it is.
    pub const WORDS: usize = 8 + 6 * MAX_TEAM;

    /// What each rank has for packets: 2 × [`MAX_TEAM`] parts, each of one packet for the call's tag and one for each 8 bytes of
    /// `packet_room`.
    pub const fn packet_bytes(packet_room: usize) -> usize {
        2 * MAX_TEAM * 16 * (packet_room / 8 + 1)
    }

    /// Its words. Refuses more ranks than a team can have.
    pub fn words(&self) -> Result<Vec<u64>, ProgramError> {
        let ranks = self.members.len();
        if ranks > MAX_TEAM || self.rank as usize >= ranks {
            let wanted = "at most 16, this rank among them";
            return Err(ProgramError::Geometry { what: "a team", found: ranks, wanted });
        }
        let mut words = vec![
            pair(self.rank, ranks as u32),
            self.room,
            self.packet_room,
            self.epochs,
            self.agreed,
            self.book,
        ];
        let fields: [fn(&Member) -> u64; 6] =
            [|m| m.flags, |m| m.stage, |m| m.packets, |m| m.input, |m| m.output, |m| m.offers];
        for field in fields {
            let all = self.members.iter().map(field).chain(std::iter::repeat(0));
            words.extend(all.take(MAX_TEAM));
        }
        words.extend([self.everywhere, self.received]);
        Ok(words)
    }
}

/// Where a block of a rank is among its calls, as its kernels say in memory of the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    /// The upper half of the tag of the call that began last.
    pub tag: u32,
    /// Calls that have begun, as far as 31 bits go.
    pub calls: u32,
    /// Whether the last of them has not ended.
    pub is_inside: bool,
}

impl Mark {
    /// Reads it.
    pub fn read(word: u64) -> Mark {
        let (low, tag) = super::layout::halves(word);
        Mark { tag, calls: low >> 1, is_inside: low & 1 != 0 }
    }
}

/// Why a block has given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The host wanted it.
    Aborted,
    /// What it waited for did not come in time.
    Late,
    /// A peer makes another call: the tags differ.
    Mismatch,
    /// A piece has another length than it should have.
    Length,
}

/// What a block says of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// Why.
    pub failure: Failure,
    /// The upper half of the call's tag.
    pub tag: u32,
    /// The lane, or of a team the block.
    pub lane: u32,
    /// The move, or of a team whether it began (0), ended (1) or agreed (2).
    pub mv: u32,
    /// The tile.
    pub tile: u32,
    /// The operand of the move, or of a team the peer.
    pub operand: u32,
    /// The number, tag or length that it waited for.
    pub expected: u64,
    /// The one that was there.
    pub found: u64,
}

impl Report {
    /// Words of a report in memory.
    pub const WORDS: usize = 5;

    /// Reads it; `None` while the block has not given up.
    pub fn read(words: [u64; Report::WORDS]) -> Option<Report> {
        let (failure, tag) = super::layout::halves(words[0]);
        let failure = match failure {
            1 => Failure::Aborted,
            2 => Failure::Late,
            3 => Failure::Mismatch,
            4 => Failure::Length,
            _ => return None,
        };
        let ((lane, mv), (tile, operand)) =
            (super::layout::halves(words[1]), super::layout::halves(words[2]));
        Some(Report { failure, tag, lane, mv, tile, operand, expected: words[3], found: words[4] })
    }
}
