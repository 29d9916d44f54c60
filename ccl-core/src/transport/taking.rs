//! Pieces that are sent, or taken, in one call.

use super::{Arrival, Fabric, ReceiverId, Refer, SenderId};
use crate::error::Result;
use crate::kernels::{Merge, Piece};

/// What came of [`Fabric::send`]. As wide as an error, so that a result of it is returned in registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Sent {
    /// It is done.
    Done,
    /// Nothing is, for want of credit.
    NoCredit,
}

/// What came of [`Fabric::lend`]. As wide as an error, so that a result of it is returned in registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Lent {
    /// A reference is handed over, for whose release the call has to wait.
    Reference,
    /// A copy is.
    Copied,
    /// Nothing is, for want of credit.
    NoCredit,
}

impl From<Sent> for Lent {
    #[inline(always)]
    fn from(sent: Sent) -> Lent {
        match sent {
            Sent::Done => Lent::Copied,
            Sent::NoCredit => Lent::NoCredit,
        }
    }
}

/// [`Fabric::lend`] in its steps.
pub fn lend<F: Fabric + ?Sized>(fabric: &mut F, to: SenderId, piece: Piece, tag: u64) -> Result<Lent> {
    match fabric.refer(to, piece)? {
        Refer::Ready => fabric.publish(to, tag).map(|()| Lent::Reference),
        Refer::NoCredit => Ok(Lent::NoCredit),
        Refer::NotMapped => fabric.send(to, piece, tag).map(Lent::from),
    }
}

/// What came of [`Fabric::take`]. As wide as an error, so that a result of it is returned in registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Taken {
    /// It is done, and the piece given back.
    Done,
    /// No piece has come.
    NotYet,
    /// The next piece is another one: of another call, or of another length. It can be peeked at.
    Another,
}

/// [`Fabric::take`] in its steps.
pub fn take<F: Fabric + ?Sized>(
    fabric: &mut F,
    from: ReceiverId,
    tag: u64,
    merge: &Merge<'_>,
) -> Result<Taken> {
    let Some(Arrival { piece, tag: theirs, store }) = fabric.peek(from)? else { return Ok(Taken::NotYet) };
    if theirs != tag || piece.len() != merge.bytes() {
        return Ok(Taken::Another);
    }
    merge.copied(store).apply(piece);
    fabric.release(from)?;
    Ok(Taken::Done)
}
