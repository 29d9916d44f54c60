//! Sends and receives: the ends that were opened, and preparing more.

use super::operation::{Operation, Transfer, What};
use super::patience::Room;
use super::plans::Prepared;
use super::prepare::{SHARED_FROM, stranger, transfer_refers_from};
use super::{Communicator, fingerprint, record};
use crate::DataType;
use crate::algorithms::{Algorithm as _, OneShot, transfer};
use crate::engine::{Layout, Progress, Schedule};
use crate::error::{Error, Result};
use crate::flight::{self, About, Entry};
use crate::kernels::{Buffers, Reducer};
use crate::plan::{Collective, Program, Rank, Spec};
use crate::transport::Offers;
use crate::verify::May;
use std::collections::HashMap;

/// Which side of a transfer this rank is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Side {
    Send = 0,
    Receive = 1,
}

impl Side {
    /// The number in the plan for two ranks.
    fn rank(self) -> Rank {
        match self {
            Side::Send => transfer::SENDER,
            Side::Receive => transfer::RECEIVER,
        }
    }

    /// What the flight record says of a transfer.
    fn about(self, what: &Transfer, fingerprint: u64) -> About {
        let end = match self {
            Side::Send => flight::End::Send,
            Side::Receive => flight::End::Receive,
        };
        About::transfer(end, what.peer, what.count, what.dtype, fingerprint)
    }

    fn program(self, peer: Rank) -> Program {
        match self {
            Side::Send => transfer::send_to(peer),
            Side::Receive => transfer::receive_from(peer),
        }
    }
}

/// The ends of the links on which this rank sends or receives.
#[derive(Default)]
pub(super) struct Transfers {
    /// By peer, up to the last that a link goes to, and by side.
    ends: Vec<[Option<Box<End>>; 2]>,
    /// The schedule that copies what a rank sends itself.
    copy: Option<usize>,
}

struct End {
    schedule: usize,
    /// Transfers that were issued on this link.
    issued: u64,
    /// The last one, which is often the next.
    last: Option<(Transfer, Prepared)>,
}

impl Transfers {
    #[inline]
    fn end(&self, peer: Rank, side: Side) -> Option<&End> {
        self.ends.get(peer as usize)?[side as usize].as_deref()
    }

    #[inline]
    fn end_mut(&mut self, peer: Rank, side: Side) -> Option<&mut End> {
        self.ends.get_mut(peer as usize)?[side as usize].as_deref_mut()
    }

    fn insert(&mut self, peer: Rank, side: Side, end: End) {
        let ends = peer as usize + 1;
        if self.ends.len() < ends {
            self.ends.resize_with(ends, Default::default);
        }
        self.ends[peer as usize][side as usize] = Some(Box::new(end));
    }

    /// The number of the next transfer on an open end.
    #[inline]
    pub(super) fn number(&mut self, peer: Rank, side: Side) -> u64 {
        self.end_mut(peer, side).map_or(0, |end| {
            end.issued += 1;
            end.issued - 1
        })
    }
}

impl Communicator {
    /// How the flight record has the transfers of a group before their links are open: those of a link in their order, as the next
    /// on it.
    pub(super) fn about_transfers(&self, transfers: &[(Side, &Transfer)]) -> Vec<(About, u64)> {
        let mut numbers = HashMap::new();
        let about = |&(side, what): &(Side, &Transfer)| {
            let next = numbers
                .entry((what.peer, side))
                .or_insert_with(|| self.transfers.end(what.peer, side).map_or(0, |end| end.issued));
            let number = *next;
            *next += 1;
            let fingerprint = fingerprint::of_transfer(self.identity, what.dtype, what.count);
            (side.about(what, fingerprint), number)
        };
        transfers.iter().map(about).collect()
    }

    /// Whether the link is open.
    pub(super) fn has_end(&self, peer: Rank, side: Side) -> bool {
        peer == self.rank || self.transfers.end(peer, side).is_some()
    }

    /// Opens the links of a group's transfers, all at once: each peer may be waiting for any of them.
    pub(super) fn open_ends(&mut self, wanted: impl IntoIterator<Item = (Rank, Side)>) -> Result<()> {
        let mut missing = Vec::new();
        for (peer, side) in wanted {
            if peer >= self.ranks {
                return Err(stranger("a transfer with rank", peer, self.ranks));
            }
            if !self.has_end(peer, side) && !missing.contains(&(peer, side)) {
                missing.push((peer, side));
            }
        }
        if missing.is_empty() {
            return Ok(());
        }
        let lanes = missing.iter().flat_map(|(peer, side)| side.program(*peer).lanes);
        self.connect(&Program { lanes: lanes.collect() })?;
        for (peer, side) in missing {
            let program = side.program(peer);
            let mut schedule = Schedule::bind(&transfer::SPEC, side.rank(), &program, &mut self.routes)?;
            // No move of a transfer writes what it sends, and none uses what it receives.
            let may = May { apart: true, in_place: false };
            let is_crowded = self.room == Room::Crowded;
            schedule.allow_references(&program, &[may], transfer_refers_from(is_crowded))?;
            match self.routes.offers() {
                Offers::None => {}
                Offers::Written if is_crowded => {}
                Offers::Written => {
                    schedule.allow_offers(&program, &[may], SHARED_FROM)?;
                    schedule.allow_shares(&program);
                }
                Offers::All => schedule.allow_offers(&program, &[may], 0)?,
            }
            let schedule = self.plans.keep(schedule);
            self.transfers.insert(peer, side, End { schedule, issued: 0, last: None });
        }
        Ok(())
    }

    /// Makes one call, outside of any group.
    pub fn run_one(&mut self, operation: Operation<'_>) -> Result<()> {
        self.usable()?;
        let (Some((side, what)), true) = (transfer_of(&operation), self.is_known(&operation)?) else {
            return self.run_all(&[operation]);
        };
        let begun = self.begin_transfer(side, what, &operation.buffers);
        let (schedule, entry, progress) = begun.map_err(|error| self.breaks(error))?;
        self.complete(schedule, Ok(progress), entry, &operation.buffers)
    }

    /// Whether something that `peer` sends has come, so that a receive finds its beginning. Never before the first receive
    /// from `peer`, in which the two open their link.
    pub fn has_arrived(&mut self, peer: Rank) -> Result<bool> {
        self.usable()?;
        if peer >= self.ranks {
            return Err(stranger("a transfer with rank", peer, self.ranks));
        }
        let Some(end) = self.transfers.end(peer, Side::Receive) else { return Ok(false) };
        let found = match self.plans.schedules[end.schedule].has_arrivals(&mut self.routes) {
            // What was published may be what the peer waits for.
            Ok(false) => self.flush().map(|_| false),
            found => found,
        };
        found.map_err(|error| self.breaks(error))
    }

    /// Whether this is a transfer like the last one on its link, for which nothing has to be worked out again.
    pub(super) fn is_known(&self, operation: &Operation<'_>) -> Result<bool> {
        let last = transfer_of(operation).and_then(|(side, what)| {
            self.transfers.end(what.peer, side)?.last.as_ref().filter(|(last, _)| last == what)
        });
        last.map_or(Ok(false), |(_, prepared)| {
            prepared.task.layout().check(&operation.buffers).map(|()| true)
        })
    }

    /// Begins a transfer that is [known](Communicator::is_known), which is to be stepped unless it is over at once.
    #[inline]
    pub(super) fn begin_transfer(
        &mut self,
        side: Side,
        what: &Transfer,
        buffers: &Buffers<'_>,
    ) -> Result<(usize, Entry, Progress)> {
        let end = self.transfers.end_mut(what.peer, side);
        let Some(End { schedule, issued, last: Some((_, prepared)) }) = end else {
            return Err(unopened(what));
        };
        let number = *issued;
        *issued += 1;
        let entry = record::begin(&self.recorder, &prepared.about, number);
        let (own, tag) = (&mut self.plans.schedules[*schedule], prepared.tag(number));
        let progress = own.dash(&prepared.task, (tag, number), 0, &mut self.routes, buffers)?;
        Ok((*schedule, entry, progress))
    }

    /// A transfer on an open end.
    #[inline]
    pub(super) fn prepare_transfer(&mut self, side: Side, what: &Transfer) -> Result<Prepared> {
        match self.transfers.end(what.peer, side) {
            Some(End { last: Some((last, prepared)), .. }) if last == what => Ok(prepared.clone()),
            _ => self.prepare_new_transfer(side, what),
        }
    }

    #[inline(never)]
    fn prepare_new_transfer(&mut self, side: Side, what: &Transfer) -> Result<Prepared> {
        let layout =
            Layout::new(&transfer::SPEC, side.rank(), what.count, what.dtype, self.tile_bytes(what.dtype))?;
        let reducer = self.copier(what.dtype)?;
        let caching = self.caching(&layout, false);
        let fingerprint = fingerprint::of_transfer(self.identity, what.dtype, what.count);
        let end = self.transfers.end_mut(what.peer, side).ok_or_else(|| unopened(what))?;
        let task = self.plans.task(end.schedule, layout, reducer, caching)?;
        let prepared = Prepared::unshared(end.schedule, task, side.about(what, fingerprint));
        end.last = Some((*what, prepared.clone()));
        Ok(prepared)
    }

    /// What a rank sends itself: a copy.
    pub(super) fn prepare_copy(
        &mut self,
        send: &Transfer,
        receive: &Transfer,
        buffers: &Buffers<'_>,
    ) -> Result<Prepared> {
        let own = self.rank;
        if (send.dtype, send.count) != (receive.dtype, receive.count) {
            return Err(Error::invalid(
                format!(
                    "rank {own} sends itself {} x {} and receives {} x {}",
                    send.count, send.dtype, receive.count, receive.dtype
                ),
                "the two must agree",
            ));
        }
        if buffers.overlap_partly() {
            return Err(Error::invalid(
                format!("rank {own} sends itself bytes that overlap with where they go"),
                "let the buffers be apart, or the same",
            ));
        }
        let spec = Spec::new(Collective::AllGather, 1, 0, 1);
        let schedule = match self.transfers.copy {
            Some(schedule) => schedule,
            None => {
                let program = OneShot.program(&spec, 0);
                let schedule = self.plans.keep(Schedule::bind(&spec, 0, &program, &mut self.routes)?);
                self.transfers.copy = Some(schedule);
                schedule
            }
        };
        let layout = Layout::new(&spec, 0, send.count, send.dtype, self.tile_bytes(send.dtype))?;
        let reducer = self.copier(send.dtype)?;
        let caching = self.caching(&layout, false);
        let task = self.plans.task(schedule, layout, reducer, caching)?;
        Ok(Prepared::unshared(schedule, task, Side::Send.about(send, 0)))
    }

    /// A reducer that only copies.
    fn copier(&self, dtype: DataType) -> Result<Reducer> {
        Ok(Reducer::at(self.level, dtype, crate::ReduceOp::Sum, 1)?)
    }

    /// The length of tiles where the cost function is not asked.
    pub(super) fn tile_bytes(&self, dtype: DataType) -> usize {
        let slot = self.model.slot_bytes;
        self.config.tile_bytes.map_or(slot, |bytes| bytes.clamp(dtype.size(), slot))
    }
}

fn unopened(what: &Transfer) -> Error {
    Error::invalid(format!("a transfer with rank {} whose link is not open", what.peer), "open it")
}

/// Which side of which transfer an operation is, if it is one. By reference: a copy of what was just written would wait for the stores.
#[inline]
pub(super) fn transfer_of<'o>(operation: &'o Operation<'_>) -> Option<(Side, &'o Transfer)> {
    match &operation.what {
        What::Send(transfer) => Some((Side::Send, transfer)),
        What::Receive(transfer) => Some((Side::Receive, transfer)),
        What::Collective(_) | What::Uneven(..) => None,
    }
}
