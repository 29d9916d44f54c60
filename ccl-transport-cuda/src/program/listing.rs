//! Reading programs: what words mean, and whether they keep to their buffers.

use super::ProgramError;
use super::layout::*;
use ccl_core::Rank;

/// A program as it was read from words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// Whose it is.
    pub rank: Rank,
    /// Members of the communicator.
    pub ranks: u32,
    /// Bytes of a tile.
    pub tile_bytes: u32,
    /// Bytes of a slot.
    pub slot_bytes: u32,
    /// Slots of a link, for each share.
    pub credits: u32,
    /// Blocks that share a lane.
    pub shares: u32,
    /// Whether contributions are combined.
    pub reduces: bool,
    /// Its lanes.
    pub lanes: Vec<LaneListing>,
}

/// A lane of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneListing {
    /// How often it is run, by all shares together.
    pub tiles: u32,
    /// Whether its moves are made one after the other, each for all of its own tiles.
    pub is_queue: bool,
    /// The first of its ends among the program's.
    pub first_end: u16,
    /// How many there are.
    pub ends: u16,
    /// The first of its scratch pieces among the program's.
    pub first_scratch: u16,
    /// How many there are.
    pub scratch: u16,
    /// Its moves.
    pub moves: Vec<MoveListing>,
}

/// A move of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MoveListing {
    /// What is combined.
    pub from: Vec<Operand>,
    /// Where the result goes.
    pub into: Vec<Operand>,
    /// Bytes of its chunks, if it has any.
    pub chunk: Option<u64>,
    /// What its pieces have beside the call's tag.
    pub salt: u32,
}

/// A source or a sink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// The chunk of the send buffer that begins at this byte.
    Input(u64),
    /// The chunk of the receive buffer that begins at this byte.
    Output(u64),
    /// A scratch piece of the lane.
    Scratch(u32),
    /// The next piece from an end of the lane.
    Receive(u32),
    /// A slot of an end of the lane.
    Send(u32),
}

impl Listing {
    /// What the words say, for buffers of so many bytes. Refuses what a kernel could not run within them.
    pub fn read(words: &[u64], input_bytes: u64, output_bytes: u64) -> Result<Listing, ProgramError> {
        let wrong = |at: usize, what: String| Err(ProgramError::Words { at, what });
        if words.len() < HEADER {
            return wrong(words.len(), format!("a header has {HEADER} words"));
        }
        if words[0] != MAGIC | u64::from(VERSION) {
            return wrong(0, format!("{:#x} is not the mark of version {VERSION}", words[0]));
        }
        let (all, lanes) = halves(words[1]);
        let (rank, ranks) = halves(words[2]);
        let (moves, operands) = halves(words[3]);
        let (tile_bytes, slot_bytes) = halves(words[4]);
        let (reserved, credits) = halves(words[5]);
        let (shares, scratches) = halves(words[6]);
        let (reduces, ends) = halves(words[7]);
        let sections =
            [HEADER as u64, LANE as u64 * u64::from(lanes), MOVE as u64 * u64::from(moves), operands.into()];
        if u64::from(all) != words.len() as u64 || sections.iter().sum::<u64>() != u64::from(all) {
            return wrong(
                1,
                format!("{lanes} lanes, {moves} moves and {operands} operands in {} words", words.len()),
            );
        }
        if rank >= ranks {
            return wrong(2, format!("rank {rank} of {ranks}"));
        }
        let lines = |bytes: u32| bytes > 0 && (bytes as usize).is_multiple_of(LINE);
        if !lines(tile_bytes)
            || !lines(slot_bytes)
            || tile_bytes > slot_bytes
            || slot_bytes as usize > MAX_SLOT_BYTES
        {
            return wrong(4, format!("tiles of {tile_bytes} and slots of {slot_bytes} bytes"));
        }
        if reserved != 0 || !credits.is_power_of_two() || credits > MAX_CREDITS {
            return wrong(5, format!("{credits} credits, and {reserved}"));
        }
        if shares == 0 || u64::from(shares) * u64::from(lanes) > MAX_WORKERS as u64 {
            return wrong(6, format!("{shares} shares of {lanes} lanes"));
        }
        let reader = Reader {
            words,
            first_move: HEADER + LANE * lanes as usize,
            first_operand: HEADER + LANE * lanes as usize + MOVE * moves as usize,
            input_bytes,
            output_bytes,
        };
        let mut next = Next { mv: 0, operand: 0, end: 0, scratch: 0 };
        let lanes: Vec<_> =
            (0..lanes as usize).map(|lane| reader.lane(lane, &mut next)).collect::<Result<_, _>>()?;
        if next != (Next { mv: moves, operand: operands, end: ends, scratch: scratches }) {
            return wrong(1, "lanes that are not the whole program".into());
        }
        let reduces = reduces != 0;
        Ok(Listing { rank, ranks, tile_bytes, slot_bytes, credits, shares, reduces, lanes })
    }
}

/// What comes next: lanes, moves and operands follow each other without gaps.
#[derive(PartialEq, Eq)]
struct Next {
    mv: u32,
    operand: u32,
    end: u32,
    scratch: u32,
}

struct Reader<'a> {
    words: &'a [u64],
    first_move: usize,
    first_operand: usize,
    input_bytes: u64,
    output_bytes: u64,
}

impl Reader<'_> {
    fn lane(&self, lane: usize, next: &mut Next) -> Result<LaneListing, ProgramError> {
        let at = HEADER + LANE * lane;
        let ((first, moves), numbers, (tiles, is_queue)) =
            (halves(self.words[at]), self.words[at + 1], halves(self.words[at + 2]));
        let [first_end, ends, first_scratch, scratch] =
            [0, 16, 32, 48].map(|shift| (numbers >> shift) as u16);
        let follows =
            first == next.mv && u32::from(first_end) == next.end && u32::from(first_scratch) == next.scratch;
        let fits = (self.first_move + MOVE * (first as usize + moves as usize)) <= self.first_operand;
        if !follows
            || !fits
            || is_queue > 1
            || usize::from(ends) > MAX_ENDS
            || usize::from(scratch) > MAX_SCRATCH
        {
            return Err(ProgramError::Words {
                at,
                what: format!("lane {lane} is out of place, or too large"),
            });
        }
        let listing = |mv| self.mv(mv, u32::from(ends), u32::from(scratch), next);
        let moves: Vec<_> = (first..first + moves).map(listing).collect::<Result<_, _>>()?;
        next.mv += moves.len() as u32;
        next.end += u32::from(ends);
        next.scratch += u32::from(scratch);
        let is_queue = is_queue == 1;
        Ok(LaneListing { tiles, is_queue, first_end, ends, first_scratch, scratch, moves })
    }

    fn mv(&self, mv: u32, ends: u32, scratch: u32, next: &mut Next) -> Result<MoveListing, ProgramError> {
        let at = self.first_move + MOVE * mv as usize;
        let (first, counts) = halves(self.words[at]);
        let (sources, sinks) = ((counts & 0xff) as usize, (counts >> 8 & 0xff) as usize);
        let chunk = (counts >> 16 & 1 == 1).then_some(self.words[at + 1]);
        let salt = counts >> SALT_SHIFT;
        let wrong = |what: &str| ProgramError::Words { at, what: format!("move {mv}: {what}") };
        if first != next.operand {
            return Err(wrong("out of place"));
        }
        if sources == 0 || sinks == 0 || sources + sinks > MAX_OPERANDS {
            return Err(wrong(&format!("{sources} sources and {sinks} sinks")));
        }
        let start = self.first_operand + first as usize;
        let words =
            self.words.get(start..start + sources + sinks).ok_or_else(|| wrong("operands past the end"))?;
        next.operand += words.len() as u32;
        let read = |(index, &word): (usize, &u64)| {
            let place = word & ((1 << KIND_SHIFT) - 1);
            let inside =
                |bytes: u64| chunk.is_some_and(|len| place.checked_add(len).is_some_and(|end| end <= bytes));
            let (is_source, below) = (index < sources, |limit: u32| place < u64::from(limit));
            let operand = match word >> KIND_SHIFT {
                INPUT if is_source && inside(self.input_bytes) => Operand::Input(place),
                OUTPUT if inside(self.output_bytes) => Operand::Output(place),
                SCRATCH if below(scratch) => Operand::Scratch(place as u32),
                RECEIVE if is_source && below(ends) => Operand::Receive(place as u32),
                SEND if !is_source && below(ends) => Operand::Send(place as u32),
                _ => {
                    let what = format!("{word:#x} is no operand of it within the buffers");
                    return Err(ProgramError::Words { at: start + index, what });
                }
            };
            Ok(operand)
        };
        let mut operands: Vec<_> = words.iter().enumerate().map(read).collect::<Result<_, _>>()?;
        let into = operands.split_off(sources);
        Ok(MoveListing { from: operands, into, chunk, salt })
    }
}
