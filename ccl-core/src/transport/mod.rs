//! What moves bytes: the contract between the engine and a transport.
//!
//! A transport gives one rank of one communicator its ends of [links](LinkKey). It has two faces:
//!
//! - [`Fabric`], the data path: reserve a slot, write into it, publish it; peek at the next filled slot,
//!   read it, release it. The engine knows no more than this.
//! - [`Transport`], the set-up: what can be reached and how well, connecting links, waiting, counters.
//!
//! # The contract of the data path
//!
//! A link is first in, first out, and *bounded*: [`Capabilities::credits`] pieces that are published and not yet released
//! always fit, [`Capabilities::slots`] of them in slots. A transport that returns credits in batches lets a few more through, never
//! twice as many, so that those which are on their way back are not missed. Nothing is lost, doubled, reordered or cut. For one sender:
//!
//! 1. [`reserve`](Fabric::reserve) gives a slot of the wanted length, or `None` while a peer holds all
//!    credits. It is *idempotent*: until `publish`, the same sender gets the same slot again, so that a
//!    move that waits for something else may ask anew at each poll.
//! 2. Between `reserve` and `publish` the bytes belong to this rank alone.
//! 3. [`publish`](Fabric::publish) hands the slot over. All writes to it happen before any read through
//!    a `peek` that returns it. It never waits: the credit was taken by `reserve`. What the network cannot take at once stays
//!    here until [`flush`](Transport::flush) hands it on.
//!
//! For one receiver:
//!
//! 1. [`peek`](Fabric::peek) gives the oldest piece that is not released, or `None`. It is idempotent.
//! 2. Between `peek` and `release` the bytes do not change.
//! 3. [`release`](Fabric::release) returns the slot and its credit. All reads happen before the sender's
//!    next write to it.
//! 4. [`take`](Fabric::take) is all of this at once for a piece that only goes to one place, as short ones mostly do.
//!
//! A sender may have several peers ([`Links`](crate::plan::Links)): then the slot is written once, and
//! each peer sees it on its own link; a transport that cannot share a slot copies it at `publish`. It
//! is free again when all of them have released it, and `reserve` needs a credit on every one of the links.
//!
//! Every piece carries a `tag`, the fingerprint of the call that it belongs to; the engine compares.
//! A transport delivers the tag with the piece and does not look at it.
//!
//! No method of [`Fabric`] blocks, allocates, locks or makes a system call on the common path.
//!
//! # How a piece travels
//!
//! The plan does not know, and no plan depends on it:
//!
//! | way | sender | receiver |
//! | --- | --- | --- |
//! | in the line | `reserve` gives bytes inside the message's own cache line or work request | `peek` finds them beside the flag |
//! | through a slot | `reserve` gives a slot in memory that the peer can read, or that is registered | `peek` gives the slot in place |
//! | by reference | `refer` in place of `reserve`: the bytes are taken from mapped or registered user memory | `peek` gives these bytes where they are, or the slot into which they were written |
//! | direct | as through a slot, or by reference, or `reserve_offered` in place of `reserve` | `offer` before it comes: `peek` gives the receiver's own memory, where it lies already |
//!
//! # References
//!
//! [`refer`](Fabric::refer) takes the place of `reserve`, and `publish` hands over the piece that it was given: no
//! byte is copied. From `publish` until the last peer has released the message nobody may write these bytes.
//! [`settled`](Fabric::settled) says when that is, and a call does not end before. A transport whose peers
//! cannot see the memory answers [`Refer::NotMapped`], and the sender reserves a slot; so references are
//! always optional, and a rank does not know how what it receives has travelled. What lies side by side there
//! [may be read as one](Fabric::peek_stretch), however many pieces it came in, and what has been offered may be written so.
//!
//! A call that fails gives its buffers back while peers may still read them. [`Transport::withdraw`] tells them:
//! from then on a `release` of a referenced piece is an error, so that bytes which have changed since are never
//! taken for a result. That is why whoever uses a piece releases it before it publishes what it made of it.
//!
//! # Offers
//!
//! With [`offer`](Fabric::offer) a receiver says where the pieces go that come next on a link. A piece that has the
//! length and the tag that belong there may be written there by its sender, and `peek` gives it there: the engine then
//! has nothing to copy. From the offer on until the last of these pieces is released nobody else uses the
//! memory, which the proof has seen to. A transport whose peers cannot write to it, or whose peers hear of it too late, sends
//! pieces as before; so offers are always optional too.
//!
//! Where processors write to each other's memory, the engine asks for it: [`reserve_offered`](Fabric::reserve_offered) takes the place of
//! `reserve` and gives what the receivers have offered, all of them or none. It asks for results, which it combines and keeps a copy of; what
//! one rank has and others want, these fetch sooner by themselves, but for the share of a rank that only sends and would wait for them meanwhile.
//!
//! A call that fails gives its buffers back while peers may still write there. [`Transport::withdraw`] does not return
//! before nobody can, or names whom it could not wait for: a transport that cannot promise this takes no offers.
//!
//! # Windows
//!
//! For memory that stays, of which both ends know beforehand what goes where, there are [windows](window): a [`put`](Fabric::put) writes bytes of the
//! sender's straight into the receiver's, and a piece that announces them follows. They too are optional.
//!
//! # How queue pairs implement it
//!
//! One reliable connection per pair and channel. A slot is a part of a registered ring at the sender,
//! mirrored at the receiver: `publish` posts one RDMA write-with-immediate of the used bytes (inline when
//! short), the immediate carries the slot's number; the header in front of the bytes carries the tag and
//! the length. `peek` looks at what the completion queue delivered. `release` counts, and the credits go
//! back piggybacked on the next write the other way, or in an inline write of their own once half of them
//! are owed. A slot sent to several peers is one registered buffer and one work request each. `reserve`
//! fails without credit, so no receiver-not-ready can happen. Completions are polled by whoever steps; the
//! completion channel's descriptor is what [`Transport::park`] sleeps on.
//!
//! # How device slots implement it
//!
//! The slots lie in device memory that the peers have mapped (IPC), and the four calls happen inside the
//! kernel that interprets the same lanes: `reserve` and `peek` are acquire loads of a counter in the peer's
//! or in one's own memory, `publish` and `release` release stores. [`Transport::connect`] exchanges the
//! memory handles, and the host-side [`Fabric`] is what the proxy thread uses for links that leave the node.

use crate::error::{Error, Result};
use crate::kernels::{Direction, Merge, Piece, PieceMut, Store};
use crate::plan::{Placement, Rank};
use std::any::Any;
use std::net::TcpStream;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub mod conformance;
mod directory;
mod local;
pub mod misuse;
mod offer;
mod stretch;
mod taking;
pub mod window;

pub use directory::{Directory, End, NewLinks, Row};
pub use local::{LocalHub, LocalTransport};
pub use offer::Offer;
pub use stretch::Stretch;
pub use taking::{Lent, Sent, Taken, lend, take};
pub use window::{DmaBuf, Window};

/// Names a link: pieces go from `from` to `to`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkKey {
    /// The sender.
    pub from: Rank,
    /// The receiver.
    pub to: Rank,
    /// Which of the links between the two.
    pub channel: u16,
}

/// The sending end of one or more links, as a transport numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SenderId(pub u32);

/// The receiving end of a link, as a transport numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReceiverId(pub u32);

/// A piece that has come in.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// The bytes, in place, until `release`.
    pub piece: Piece,
    /// The fingerprint of the sender's call.
    pub tag: u64,
    /// How it is best written where it is copied into the caches: [`Store::Cached`] or [`Store::Words`].
    pub store: Store,
}

/// What [`Fabric::refer`] says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refer {
    /// `publish` will hand the piece over.
    Ready,
    /// A peer holds all credits: ask again, as after a `reserve` that gave nothing.
    NoCredit,
    /// The peers cannot see this memory, for now or at all: reserve a slot.
    NotMapped,
}

/// Memory for calls that are to come.
#[derive(Clone, Debug)]
pub struct UserMemory {
    /// All of it. Whoever registers it vouches that it is readable and writable, and no other memory, until it is
    /// deregistered or its communicator closed.
    pub piece: Piece,
    /// What keeps it there meanwhile, if the caller's word is not enough.
    pub owner: Option<Arc<dyn Any + Send + Sync>>,
}

/// Memory of this process that says itself when it comes and goes: nobody need register it.
#[derive(Clone, Copy, Debug)]
pub struct KnownMemory {
    /// Another number whenever some has come or is about to go.
    pub changes: fn() -> u64,
    /// All there is. Each has an owner, which is one only: who has seen it knows it again.
    pub all: fn() -> Vec<UserMemory>,
}

/// Most pieces of a link that are in slots at a time, where each rank has a core for itself: a sender that runs further ahead drives what the receiver is to read
/// next out of its cache. With 32 of 64 KiB between two cores all-gathers of 4 MiB and more took up to 14 % longer.
pub const SLOTS_PER_LINK: u32 = 8;

/// Bytes of a slot in shared memory between ranks that lie so. Two ranks take up to a tenth less for calls of 256 KiB and more with 128 KiB than
/// with 64, and so do 4 on 2 cores; but 8 ranks on 2 cores take a seventh more for all-to-alls of 1 MiB, and 2 ranks up to a tenth more for what
/// is sent in pieces of 16 and 32 KiB. What goes between hosts is cut alike, and was measured with 64.
pub fn slot_bytes_of(placement: Placement) -> usize {
    if placement.hosts == 1 && placement.ranks <= 4 { 128 << 10 } else { 64 << 10 }
}

/// The data path. The [module](self) has the contract of each call.
pub trait Fabric {
    /// A slot of exactly `len` bytes (at most [`Capabilities::slot_bytes`]), or `None` for want of credit.
    fn reserve(&mut self, to: SenderId, len: usize) -> Result<Option<PieceMut>>;

    /// In place of `reserve`: `publish` shall hand over `piece` itself, where it lies. Idempotent as `reserve` is. After
    /// a `reserve` that gave a slot the answer is [`Refer::NotMapped`]; a `reserve` after it takes its place.
    fn refer(&mut self, _to: SenderId, _piece: Piece) -> Result<Refer> {
        Ok(Refer::NotMapped)
    }

    /// Whether the peers have released every piece that was handed over by reference.
    fn settled(&mut self, _to: SenderId) -> Result<bool> {
        Ok(true)
    }

    /// In place of `reserve`: the memory that the receivers of the next pieces have offered for them, in the first of `sinks`, as many as there
    /// are receivers; and how many these are, 0 where not all of them have offered any, or there are not as many credits as pieces. Not while a reservation is held. `publish` must
    /// follow at once, and hands over all of the pieces: a receiver that withdraws waits for it.
    fn reserve_offered(
        &mut self,
        _to: SenderId,
        _stretch: Stretch,
        _tag: u64,
        _sinks: &mut [PieceMut],
    ) -> Result<usize> {
        Ok(0)
    }

    /// Hands over the slot that `reserve` gave, or the piece that `refer` was given, or what was written to offered memory.
    fn publish(&mut self, to: SenderId, tag: u64) -> Result<()>;

    /// Copies a piece and hands it over, all at once: what `reserve`, a copy and `publish` come to. Not while a reservation is
    /// held.
    #[inline]
    fn send(&mut self, to: SenderId, piece: Piece, tag: u64) -> Result<Sent> {
        let Some(slot) = self.reserve(to, piece.len())? else { return Ok(Sent::NoCredit) };
        slot.copy_from(piece);
        self.publish(to, tag)?;
        Ok(Sent::Done)
    }

    /// Hands a piece over where it lies, as [`refer`](Fabric::refer) does, or else a copy of it, all at once. Not while a reservation is held.
    fn lend(&mut self, to: SenderId, piece: Piece, tag: u64) -> Result<Lent> {
        lend(self, to, piece, tag)
    }

    /// Has bytes of a link's source brought to the same place of its target, and hands over `word`, a short piece, behind them. False for want of
    /// credit. Not while a reservation is held.
    fn put(&mut self, _to: SenderId, _bytes: Range<usize>, _word: Piece, _tag: u64) -> Result<bool> {
        Err(misuse::no_windows())
    }

    /// How many puts of a link are over, counted in order: the network needs their bytes no more.
    fn puts_over(&mut self, _to: SenderId) -> Result<u64> {
        Ok(0)
    }

    /// Where the pieces that come next on a link are to go. The last offer of a link counts.
    fn offer(&mut self, _from: ReceiverId, _offer: Offer) -> Result<()> {
        Ok(())
    }

    /// The oldest piece not yet released, or `None`.
    fn peek(&mut self, from: ReceiverId) -> Result<Option<Arrival>>;

    /// [`peek`](Fabric::peek), and those that come next, `most` pieces at most and in this direction, as far as they are there and lie side by side, in memory that
    /// their sender has lent or where they were offered: all of them as one piece, and how many they are. Each is [released](Fabric::release) by itself, after a `peek`.
    fn peek_stretch(
        &mut self,
        from: ReceiverId,
        _most: usize,
        _direction: Direction,
    ) -> Result<Option<(Arrival, usize)>> {
        Ok(self.peek(from)?.map(|arrival| (arrival, 1)))
    }

    /// Gives back the piece that `peek` gave.
    fn release(&mut self, from: ReceiverId) -> Result<()>;

    /// Merges the next piece if it has come, carries this tag and is as long as it must be, and gives it back, all at once: what
    /// `peek`, the engine's part and `release` come to.
    #[inline]
    fn take(&mut self, from: ReceiverId, tag: u64, merge: &Merge<'_>) -> Result<Taken> {
        take(self, from, tag, merge)
    }
}

/// The set-up of a transport: one object per rank and communicator.
pub trait Transport: Fabric + Send {
    /// Its name in logs, errors and variables: `shm`, `tcp`, `ib`.
    fn name(&self) -> &'static str;

    /// What it can do; constant over its life.
    fn capabilities(&self) -> Capabilities;

    /// At most 256 bytes that every other rank is given at initialisation, for [`probe`](Transport::probe).
    fn address(&self) -> Vec<u8>;

    /// Whether the rank with this address can be reached, how well, or why not. Makes no connection.
    fn probe(&self, peer: Rank, address: &[u8]) -> std::result::Result<Reach, String>;

    /// Opens links, each with this rank at one of its ends; links that are open already are left alone.
    /// The peers open the same links at the same time. Fails at the exchange's deadline, naming
    /// the ranks that did not come.
    fn connect(&mut self, links: &[LinkKey], exchange: &mut dyn Exchange) -> Result<()>;

    /// The sending end for the open links to all of `peers`. The same arguments give the same end.
    fn sender(&mut self, peers: &[Rank], channel: u16) -> Result<SenderId>;

    /// The receiving end of the open link from `peer`. The same arguments give the same end.
    fn receiver(&mut self, peer: Rank, channel: u16) -> Result<ReceiverId>;

    /// Hands on what `publish` could not, because it never waits. True once nothing is left that needs this rank. Asked by
    /// whoever waits, and before a call ends. Not asked of a transport of one host.
    fn flush(&mut self) -> Result<bool> {
        Ok(true)
    }

    /// Settles how long pieces get, before anything is connected: `addresses` are those of all ranks that have this transport,
    /// and `most` is the longest piece that other transports take, where pieces go by them too. Called alike on all ranks.
    fn meet(&mut self, _addresses: &[&[u8]], _most: Option<usize>) {}

    /// Says how many ranks of the communicator share this host, and how many of its cores, before anything is connected: caches are
    /// shared accordingly.
    fn set_crowd(&mut self, _ranks: u32, _cores: u32) {}

    /// Sleeps until something may have happened on one of the open links, at most for `limit`. May return
    /// early, never misses a piece or a credit that came before it slept.
    fn park(&mut self, limit: Duration) -> Result<()>;

    /// Tells the peers of this host on which core this rank runs. Costs them nothing as long as it stays there.
    fn set_core(&mut self, _core: u32) {}

    /// The core on which a connected peer of this host ran when it last said so.
    fn core_of(&self, _peer: Rank) -> Option<u32> {
        None
    }

    /// Makes ready for calls to use this memory: shows it to the peers that are connected, so that the first message that
    /// refers to it need not, or lets the network read and write it. Whether there is something to be gained.
    fn register(&mut self, _memory: &UserMemory) -> Result<bool> {
        Ok(false)
    }

    /// Undoes what [`register`](Transport::register) has done for this piece, once for each time. Not within a call.
    fn deregister(&mut self, _piece: Piece) -> Result<()> {
        Ok(())
    }

    /// Makes memory the target of an open link: its sender may write there. Gives what the sender must know for
    /// [`aim`](Transport::aim), in at most 1024 bytes; the error says why it cannot be.
    fn admit(&mut self, _from: ReceiverId, _target: &Window) -> Result<Vec<u8>> {
        Err(misuse::no_windows())
    }

    /// Takes the target of a link back, into which nothing was put.
    fn dismiss(&mut self, _from: ReceiverId) {}

    /// Makes memory the source of an open link, whose receiver has said this of its target. From then on there may be puts.
    fn aim(&mut self, _to: SenderId, _source: &Window, _target: &[u8]) -> Result<()> {
        Err(misuse::no_windows())
    }

    /// The network devices over which a connected peer may be reached, by name; none where none has one.
    fn devices(&self, _peer: Rank) -> Vec<String> {
        Vec::new()
    }

    /// A call has failed: what was handed over by reference may change from now on, and once this has returned nobody writes
    /// to what was offered, except the peers that it names: they stand still in the middle of it. No call follows.
    fn withdraw(&mut self) -> Vec<Rank> {
        Vec::new()
    }

    /// How a connected peer is reached, in words: devices, addresses, and why these. Empty where there is nothing to say.
    fn describe(&self, _peer: Rank) -> String {
        String::new()
    }

    /// What every open link has done so far.
    fn counters(&self) -> Vec<(LinkKey, Counters)>;

    /// Bytes of memory that this rank's links take now.
    fn memory(&self) -> u64;
}

/// Streams that [`Exchange::streams`] opens to one rank at most.
pub const MOST_STREAMS: u16 = 64;

/// Swaps opaque blobs with peers while links are being connected.
pub trait Exchange {
    /// Sends each blob to its rank and returns what the same ranks sent, in the same order. Every named
    /// rank must name this one in a call of its own. At most 4096 bytes each.
    fn swap(&mut self, blobs: &[(Rank, Vec<u8>)]) -> Result<Vec<Vec<u8>>>;

    /// Opens so many streams to each of these ranks, over the network. Each end has proved to the other that it belongs to this
    /// job, and the streams of a pair come in the same order at both. They do not block, do not delay short writes, and are not
    /// inherited. Every named rank must name this one in a call of its own, with the same number, and the two must swap
    /// once more before the first byte: until then the opening itself may use them. At most [`MOST_STREAMS`] to a rank.
    fn streams(&mut self, _wanted: &[(Rank, u16)]) -> Result<Vec<Vec<TcpStream>>> {
        Err(Error::unsupported("streams over this exchange", "bring the ranks together with the bootstrap"))
    }

    /// When connecting must have ended.
    fn deadline(&self) -> Instant;

    /// An error where it can come to nothing any more, because a rank is dead, say. Ask every few milliseconds of a wait.
    fn check(&self) -> Result<()> {
        Ok(())
    }
}

/// What a transport can do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Capabilities {
    /// Longest piece in bytes.
    pub slot_bytes: usize,
    /// Pieces on a link that can always be published and not yet released.
    pub credits: u32,
    /// How many of them may be longer than [`short_bytes`](Capabilities::short_bytes), unless they travel by reference.
    pub slots: u32,
    /// Pieces up to this many bytes travel with what announces them.
    pub inline_bytes: usize,
    /// Pieces up to this many bytes take no slot.
    pub short_bytes: usize,
    /// Whether a slot sent to several peers is written once.
    pub shared_slots: bool,
    /// Whether several ranks of one process may use it.
    pub threads: bool,
    /// Whether it reaches ranks of its own host only.
    pub one_host: bool,
    /// Which [offers](self#offers) it takes.
    pub offers: Offers,
}

/// Which offers a transport is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Offers {
    /// None.
    None,
    /// Of memory for what its sender writes there by itself: what it combines and keeps a copy of, and a share of what it has where it only sends.
    Written,
    /// Of memory for whatever comes.
    All,
}

/// How well a peer is reached; the cost function's α and 1/β.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reach {
    /// One way, short piece, in nanoseconds.
    pub latency_ns: f64,
    /// What a message takes of the sender's or the receiver's time besides its bytes, in nanoseconds, whichever is more.
    pub message_ns: f64,
    /// Bytes per nanosecond (GB/s).
    pub bandwidth: f64,
    /// Whether the ranks' processors move the bytes; else a device does, while they do other things.
    pub by_processor: bool,
}

/// What a link has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Pieces published (at the sender) or released (at the receiver).
    pub pieces: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Pieces among them that travelled in the line.
    pub inline: u64,
    /// Pieces among them that travelled by reference.
    pub referenced: u64,
    /// Their bytes, which no slot of the sender's has seen.
    pub referenced_bytes: u64,
    /// Pieces among them that were written into memory which the receiver had offered.
    pub direct: u64,
    /// Their bytes.
    pub direct_bytes: u64,
    /// Pieces among them that announced a [put](Fabric::put); counted at the sender.
    pub puts: u64,
    /// The bytes of these puts, which are no piece's.
    pub put_bytes: u64,
    /// Polls that found no credit (at the sender) or no piece (at the receiver).
    pub stalls: u64,
}
