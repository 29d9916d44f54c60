//! One socket to a peer: frames out, frames in, and what became of it.

use crate::error::{broken, system};
use crate::frame::{HEADER_BYTES, Header, Kind};
use crate::incoming::{Held, Incoming};
use crate::outgoing::Outgoing;
use crate::slots::Slots;
use crate::sys;
use ccl_core::kernels::Piece;
use ccl_core::{Error, Rank, Result};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use std::collections::{HashMap, VecDeque};
use std::io::{self, IoSlice, IoSliceMut, Read};
use std::net::{Shutdown, TcpStream};

/// Bytes that are read together while short frames come: a hundred of them.
const STAGE_BYTES: usize = 8 << 10;

/// What is left of a piece and longer than this is read with the next header and nothing more, so that the next piece, which is
/// likely as long, goes into its slot without a detour.
const LONG: usize = STAGE_BYTES;

/// Frames that are written together at most.
const FRAMES_AT_ONCE: usize = 8;

/// The ends of all links of a rank, and the memory of their pieces.
#[derive(Debug)]
pub(crate) struct Ends {
    pub(crate) outgoing: Vec<Outgoing>,
    pub(crate) incoming: Vec<Incoming>,
    pub(crate) slots: Slots,
    pub(crate) slot_bytes: usize,
}

/// System calls on sockets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SystemCalls {
    /// Reads that gave bytes.
    pub reads: u64,
    /// Reads that found nothing: polls of a rank that waits.
    pub empty_reads: u64,
    /// Writes.
    pub writes: u64,
    /// Writes that took less than they were given.
    pub short_writes: u64,
    /// Sleeps.
    pub polls: u64,
    /// Frames that carried nothing but credits.
    pub credit_frames: u64,
}

/// A socket to a peer, which several links share.
#[derive(Debug)]
pub(crate) struct Socket {
    pub(crate) stream: TcpStream,
    pub(crate) peer: Rank,
    /// The other end, for errors.
    pub(crate) name: String,
    /// Positions of its links among the rank's, by channel.
    pub(crate) outgoing: HashMap<u16, u32>,
    pub(crate) incoming: HashMap<u16, u32>,
    /// Bytes that came and are not taken yet: `stage[start..end]`.
    stage: Box<[u8; STAGE_BYTES]>,
    start: usize,
    end: usize,
    /// The piece that is coming in. Then the stage is empty.
    filling: Option<Filling>,
    /// Frames that the kernel has not taken.
    out: VecDeque<Frame>,
    /// Frames among them that hold the user's memory.
    lent: u32,
    /// Why nothing can be written any more.
    mute: Option<Error>,
    /// Why nothing more comes.
    pub(crate) ended: Option<Error>,
    pub(crate) calls: SystemCalls,
}

#[derive(Debug)]
struct Filling {
    link: u32,
    slot: u32,
    len: usize,
    got: usize,
    tag: u64,
}

/// A frame that has not gone yet, or not all of it.
#[derive(Debug)]
struct Frame {
    header: [u8; HEADER_BYTES],
    body: Body,
    /// Bytes of header and body that have gone.
    gone: usize,
}

/// Where the bytes of a frame lie.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Body {
    Nothing,
    /// So many bytes of a slot, of which the frame is a user.
    Slot(u32, usize),
    /// The user's memory, which stays as it is until the frame has gone.
    Lent(Piece),
}

impl Body {
    #[inline]
    fn bytes<'a>(&'a self, slots: &'a Slots) -> &'a [u8] {
        match self {
            Body::Nothing => &[],
            Body::Slot(slot, len) => slots[*slot].bytes(0, *len),
            Body::Lent(piece) => sys::bytes_of(piece, 0),
        }
    }

    #[inline]
    fn done(self, slots: &mut Slots) {
        if let Body::Slot(slot, _) = self {
            slots.put(slot);
        }
    }
}

impl Socket {
    /// A stream to a peer that does not block.
    pub(crate) fn new(stream: TcpStream, peer: Rank, name: String) -> Socket {
        Socket {
            stream,
            peer,
            name,
            outgoing: HashMap::new(),
            incoming: HashMap::new(),
            stage: Box::new([0; STAGE_BYTES]),
            start: 0,
            end: 0,
            filling: None,
            out: VecDeque::new(),
            lent: 0,
            mute: None,
            ended: None,
            calls: SystemCalls::default(),
        }
    }

    /// Whether everything has gone.
    #[inline]
    pub(crate) fn is_flushed(&self) -> bool {
        self.out.is_empty()
    }

    /// Whether it holds memory of the user.
    pub(crate) fn borrows(&self) -> bool {
        self.lent > 0
    }

    /// Sends a frame: as much of it as goes at once, and the rest later.
    #[inline]
    pub(crate) fn send(&mut self, header: &Header, body: Body, slots: &mut Slots) -> Result<()> {
        let frame = Frame { header: header.encode(), body, gone: 0 };
        if self.out.is_empty() {
            let bytes = body.bytes(slots);
            let all = HEADER_BYTES + bytes.len();
            match self.write_some(&[IoSlice::new(&frame.header), IoSlice::new(bytes)], all) {
                Ok(gone) if gone == all => body.done(slots),
                Ok(gone) => self.queue(Frame { gone, ..frame }),
                Err(error) => {
                    body.done(slots);
                    return Err(error);
                }
            }
            return Ok(());
        }
        self.queue(frame);
        self.flush(slots)
    }

    /// Sends bytes that are the caller's only for now: what does not go at once is copied.
    #[inline]
    pub(crate) fn send_copy(&mut self, header: &Header, piece: Piece, slots: &mut Slots) -> Result<()> {
        let encoded = header.encode();
        let mut gone = 0;
        if self.out.is_empty() {
            let bytes = sys::bytes_of(&piece, 0);
            let all = HEADER_BYTES + bytes.len();
            gone = self.write_some(&[IoSlice::new(&encoded), IoSlice::new(bytes)], all)?;
            if gone == all {
                return Ok(());
            }
        }
        let body = if piece.is_empty() {
            Body::Nothing
        } else {
            let slot = slots.take();
            slots[slot].piece_mut(piece.len()).copy_from(piece);
            Body::Slot(slot, piece.len())
        };
        self.queue(Frame { header: encoded, body, gone });
        Ok(())
    }

    #[cold]
    fn queue(&mut self, frame: Frame) {
        self.lent += u32::from(matches!(frame.body, Body::Lent(_)));
        self.out.push_back(frame);
    }

    /// Sends what is left, as far as it goes.
    #[cold]
    pub(crate) fn flush(&mut self, slots: &mut Slots) -> Result<()> {
        while !self.out.is_empty() {
            let mut parts = [IoSlice::new(&[]); 2 * FRAMES_AT_ONCE];
            let mut all = 0;
            for (frame, parts) in self.out.iter().zip(parts.chunks_exact_mut(2)) {
                let bytes = frame.body.bytes(slots);
                let (header_gone, body_gone) =
                    (frame.gone.min(HEADER_BYTES), frame.gone.saturating_sub(HEADER_BYTES));
                parts[0] = IoSlice::new(&frame.header[header_gone..]);
                parts[1] = IoSlice::new(&bytes[body_gone..]);
                all += parts[0].len() + parts[1].len();
            }
            let used = 2 * self.out.len().min(FRAMES_AT_ONCE);
            // The queue's frames are looked at, and the socket is written to, at once.
            let stream = &self.stream;
            let written = write_to(stream, &parts[..used]);
            let gone = self.took(written, all)?;
            self.advance(gone, slots);
            if gone < all {
                return Ok(());
            }
        }
        Ok(())
    }

    /// So many bytes of the queue have gone.
    fn advance(&mut self, mut gone: usize, slots: &mut Slots) {
        while let Some(frame) = self.out.front_mut() {
            let left = HEADER_BYTES + frame.body.bytes(slots).len() - frame.gone;
            if gone < left {
                frame.gone += gone;
                return;
            }
            gone -= left;
            self.drop_front(slots);
        }
    }

    fn drop_front(&mut self, slots: &mut Slots) {
        if let Some(frame) = self.out.pop_front() {
            self.lent -= u32::from(matches!(frame.body, Body::Lent(_)));
            frame.body.done(slots);
        }
    }

    #[inline]
    fn write_some(&mut self, parts: &[IoSlice<'_>], all: usize) -> Result<usize> {
        let written = write_to(&self.stream, parts);
        self.took(written, all)
    }

    /// How much the kernel took of so many bytes.
    #[inline]
    fn took(&mut self, written: rustix::io::Result<usize>, all: usize) -> Result<usize> {
        self.calls.writes += 1;
        let gone = match written {
            Ok(gone) => gone,
            Err(Errno::AGAIN) => 0,
            Err(errno) => return Err(self.lost_voice(errno)),
        };
        self.calls.short_writes += u64::from(gone < all);
        Ok(gone)
    }

    /// Nothing can be written any more. What the peer has sent before can still be read.
    #[cold]
    fn lost_voice(&mut self, errno: Errno) -> Error {
        let error = self.given_up("sending", errno.into());
        self.mute.get_or_insert(error).clone()
    }

    /// An error if nothing can be sent.
    #[inline]
    pub(crate) fn check_voice(&self) -> Result<()> {
        match self.mute.as_ref().or(self.ended.as_ref()) {
            None => Ok(()),
            Some(error) => Err(error.clone()),
        }
    }

    /// Sends what is left, as far as it goes. A peer that is gone needs no credits, and whoever waits for it gets the error.
    pub(crate) fn flush_pieces(&mut self, slots: &mut Slots) -> Result<()> {
        let flushed = self.flush(slots);
        if flushed.is_err() && self.out.iter().all(|frame| matches!(frame.body, Body::Nothing)) {
            self.out.clear();
            return Ok(());
        }
        flushed
    }

    /// Takes in what has come, until it is something whole or there is no more. Whether it was. The end of the stream is kept in
    /// `ended`; only what no peer of ours would send is an error here.
    #[inline]
    pub(crate) fn read(&mut self, ends: &mut Ends) -> Result<bool> {
        while self.ended.is_none() {
            let (got, wanted) = self.receive(&mut ends.slots);
            if got == 0 {
                return Ok(false);
            }
            let news = self.take(ends).map_err(|what| self.garbage(what))?;
            if news || got < wanted {
                return Ok(news);
            }
        }
        Ok(false)
    }

    /// Reads once. How many bytes came, and how many there was room for.
    #[inline]
    fn receive(&mut self, slots: &mut Slots) -> (usize, usize) {
        if self.start > 0 {
            // Less than a header.
            self.stage.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let room = &mut self.stage[self.end..];
        let (read, wanted, direct) = match &self.filling {
            Some(Filling { slot, len, got, .. }) => {
                let left = len - got;
                let ahead = if left >= LONG { HEADER_BYTES } else { room.len() };
                let parts = &mut [
                    IoSliceMut::new(slots[*slot].bytes_mut(*got, *len)),
                    IoSliceMut::new(&mut room[..ahead]),
                ];
                ((&self.stream).read_vectored(parts), left + ahead, left)
            }
            None => {
                let wanted = room.len();
                ((&self.stream).read(room), wanted, 0)
            }
        };
        let got = match read {
            Ok(0) => {
                self.ended = Some(self.closed());
                0
            }
            Ok(got) => got,
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => 0,
            Err(e) => {
                self.ended = Some(self.given_up("receiving", e));
                0
            }
        };
        *if got > 0 { &mut self.calls.reads } else { &mut self.calls.empty_reads } += 1;
        if let Some(filling) = &mut self.filling {
            filling.got += got.min(direct);
        }
        self.end += got.saturating_sub(direct);
        (got, wanted)
    }

    /// Takes whatever is whole. Whether there was something that somebody may wait for.
    #[inline]
    fn take(&mut self, ends: &mut Ends) -> Result<bool, &'static str> {
        let mut news = false;
        loop {
            if let Some(filling) = &mut self.filling {
                let here = (self.end - self.start).min(filling.len - filling.got);
                let into = ends.slots[filling.slot].bytes_mut(filling.got, filling.got + here);
                into.copy_from_slice(&self.stage[self.start..self.start + here]);
                self.start += here;
                filling.got += here;
                if filling.got < filling.len {
                    break;
                }
                let Filling { link, slot, len, tag, .. } = *filling;
                ends.incoming[link as usize].keep(Held { slot: Some(slot), len: len as u32, tag });
                self.filling = None;
                news = true;
            }
            let Some(header) = self.stage[self.start..self.end].first_chunk() else { break };
            let header = Header::decode(header).ok_or("a header that is none")?;
            self.start += HEADER_BYTES;
            news |= self.open(&header, ends)?;
        }
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
        Ok(news)
    }

    /// Looks at a header. Whether it is news by itself.
    #[inline]
    fn open(&mut self, header: &Header, ends: &mut Ends) -> Result<bool, &'static str> {
        let mut news = match self.outgoing.get(&header.channel) {
            Some(&link) => ends.outgoing[link as usize].learn(header.released)?,
            None if header.released == 0 && header.kind == Kind::Piece => false,
            None => return Err("credits of a link that is not open"),
        };
        if header.kind == Kind::Piece {
            let &link = self.incoming.get(&header.channel).ok_or("a piece on a link that is not open")?;
            ends.incoming[link as usize].admit(header.number)?;
            let (len, tag) = (header.len as usize, header.tag);
            if len > ends.slot_bytes {
                return Err("a piece longer than a slot");
            }
            if len == 0 {
                ends.incoming[link as usize].keep(Held { slot: None, len: 0, tag });
                news = true;
            } else {
                self.filling = Some(Filling { link, slot: ends.slots.take(), len, got: 0, tag });
            }
        }
        Ok(news)
    }

    #[cold]
    fn closed(&self) -> Error {
        let what = format!(
            "the peer has closed its connection ({}); see whether its process ended, and why",
            self.name
        );
        broken(self.peer, what)
    }

    #[cold]
    fn given_up(&self, doing: &str, e: io::Error) -> Error {
        let what = format!(
            "{doing} over the connection to {}: {e}; see whether the process there ended, or the network between the hosts failed",
            self.name
        );
        system(self.peer, what, e)
    }

    /// Nothing that follows can be understood: the connection is closed.
    #[cold]
    fn garbage(&mut self, what: &str) -> Error {
        let _ = self.stream.shutdown(Shutdown::Both);
        let what = format!(
            "the connection to {} is damaged ({what}); see whether both ranks run the same version of this library",
            self.name
        );
        let error = broken(self.peer, what);
        self.ended.insert(error).clone()
    }
}

/// Writes once; a peer that is gone raises no signal.
#[inline]
fn write_to(stream: &TcpStream, parts: &[IoSlice<'_>]) -> rustix::io::Result<usize> {
    loop {
        match sendmsg(stream, parts, &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}
