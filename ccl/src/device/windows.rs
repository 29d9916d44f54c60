//! How pieces go between hosts: by puts between the slots at both ends, or copied by the proxies; and where the slots lie.
//!
//! For each pair of ranks, and each direction, the receiver first shows its slots to the network and says how they are named there; then the sender
//! does so with its own, and says whether it will put. Where either cannot, that direction is copied, between slots in pinned memory.
//! Each end decides for itself whether its slots lie in its device's memory: the network does not know the difference.

use crate::gpudirect::{Direct, Neighbourhood};
use crate::{Error, Rank, Result};
use ccl_core::communicator::{Communicator as Core, Opener, SideLinks};
use ccl_core::transport::Window;
use ccl_transport_cuda::engine::{Draft, Ends, Slots};
use std::fmt;

/// What two ranks have agreed on.
#[derive(Clone, Debug)]
pub(super) struct Crossing {
    peer: Rank,
    /// This rank puts what it sends.
    pub(super) puts: bool,
    /// The peer does.
    pub(super) is_put_to: bool,
    /// What the peer has put must be flushed before the kernel is told of it.
    pub(super) needs_flush: bool,
    /// Where the slots lie, to the peer and from it: on the device, or in pinned memory.
    are_on_device: [bool; 2],
    /// Why they do not all lie there.
    why: Option<String>,
}

impl fmt::Display for Crossing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let side = |is_put: bool, is_on_device: bool| match (is_put, is_on_device) {
            (true, true) => "put, in the device's memory",
            (true, false) => "put, in pinned memory",
            (false, _) => "copied, in pinned memory",
        };
        let [to, from] = self.are_on_device;
        let (to, from) = (side(self.puts, to), side(self.is_put_to, from));
        write!(f, "pieces of kernels to rank {} are {to}; from there, {from}", self.peer)?;
        if self.needs_flush {
            f.write_str(", with a flush")?;
        }
        match &self.why {
            Some(why) => write!(f, " ({why})"),
            None => Ok(()),
        }
    }
}

/// The links to the ranks on other hosts, and what goes over them.
pub(super) struct Away {
    pub(super) links: SideLinks,
    /// By peer.
    pub(super) crossings: Vec<Crossing>,
    /// The slots for each peer, or why this rank has none.
    pub(super) slots: Result<Vec<Ends>>,
}

/// What is said in front of a description, or in place of one.
const YES: u8 = 1;
const NO: u8 = 0;

/// Opens links to all peers, and agrees with each. All ranks call it; what fails at one of them is among what it gives. Where only windows fail,
/// pieces are copied.
pub(super) fn open(core: &mut Core, opener: &dyn Opener, draft: &Draft, device: u32) -> Result<Away> {
    let mut links = core.open_side_links(opener, draft.peers())?;
    let fits = fits(&links, draft);
    let mut directs = directs(core, &links, device);
    let mut incoming = Vec::new();
    for (peer, direct) in directs.iter_mut().enumerate() {
        incoming.push(
            fits.clone().and_then(|()| Made::new(draft, direct, true, |window| links.admit(peer, window))),
        );
    }
    let word = |made: &Result<Made<Vec<u8>>>| match made {
        Ok(Made { told: Ok(target), .. }) => [&[YES][..], target].concat(),
        _ => vec![NO],
    };
    let theirs = core.swap_with_side(&links, incoming.iter().map(word).collect())?;
    let mut outgoing = Vec::new();
    for (peer, (direct, theirs)) in directs.iter_mut().zip(&theirs).enumerate() {
        let target = theirs.split_first().filter(|(word, _)| **word == YES).map(|(_, target)| target);
        let aim = |window: &Window| match target {
            Some(target) => links.aim(peer, window, target),
            None => {
                Err(Error::unsupported("puts into slots that the peer has not shown", "its log says why"))
            }
        };
        let sends = target.is_some() && direct.as_ref().is_ok_and(|direct| direct.sends);
        outgoing.push(fits.clone().and_then(|()| Made::new(draft, direct, sends, aim)));
    }
    let word = |made: &Result<Made<()>>| {
        vec![if made.as_ref().is_ok_and(|made| made.told.is_ok()) { YES } else { NO }]
    };
    let answers = core.swap_with_side(&links, outgoing.iter().map(word).collect())?;
    let (mut crossings, mut slots) = (Vec::new(), Vec::new());
    for (peer, (outgoing, incoming)) in outgoing.into_iter().zip(incoming).enumerate() {
        let is_put_to = answers[peer] == [YES] && incoming.as_ref().is_ok_and(|made| made.told.is_ok());
        if !is_put_to {
            links.dismiss(peer);
        }
        let direct = &directs[peer];
        let agreed = outgoing.and_then(|outgoing| {
            let incoming = incoming?;
            let why =
                [outgoing.told.as_ref().err(), incoming.told.as_ref().err()].into_iter().flatten().next();
            // Whoever copies needs memory of the host.
            let must_move = !is_put_to && incoming.slots.are_on_device();
            let ends = Ends {
                outgoing: outgoing.slots,
                incoming: if must_move { draft.pinned()? } else { incoming.slots.clone() },
            };
            let are_on_device = [ends.outgoing.are_on_device(), ends.incoming.are_on_device()];
            let crossing = Crossing {
                peer: draft.peers()[peer],
                puts: outgoing.told.is_ok(),
                is_put_to,
                needs_flush: incoming.needs_flush && are_on_device[1],
                are_on_device,
                why: why.map(ToString::to_string).or_else(|| direct.as_ref().err().cloned()),
            };
            tracing::info!(target: "net", rank = core.rank(), "{crossing}");
            Ok((crossing, ends))
        });
        slots.push(agreed.map(|(crossing, ends)| {
            crossings.push(crossing);
            ends
        }));
    }
    Ok(Away { links, crossings, slots: slots.into_iter().collect() })
}

/// How the network reaches the device's memory on the way to each peer, or why it does not.
fn directs(core: &Core, links: &SideLinks, device: u32) -> Vec<std::result::Result<Direct, String>> {
    let names: Vec<_> = (0..links.peers().len()).map(|peer| links.devices(peer)).collect();
    // Where there is no RDMA on any way its devices are not opened.
    let around = match names.iter().all(Vec::is_empty) {
        true => Err("no RDMA device is on the way".to_string()),
        false => Neighbourhood::of(core.config(), device).map_err(|error| error.to_string()),
    };
    names.iter().map(|names| around.as_ref().map_err(Clone::clone)?.over(names)).collect()
}

/// Slots that were made, and what the network has told of them, or why it does not know them.
struct Made<T> {
    slots: Slots,
    /// What the network writes there must be flushed.
    needs_flush: bool,
    told: Result<T>,
}

impl<T> Made<T> {
    /// Makes slots and shows them: in the device's memory, if the network reaches that and it `may_be` there; else in pinned memory. Why the former was not
    /// possible takes the place of `direct`.
    fn new(
        draft: &Draft,
        direct: &mut std::result::Result<Direct, String>,
        may_be: bool,
        mut show: impl FnMut(&Window) -> Result<T>,
    ) -> Result<Made<T>> {
        if let (Ok(way), true) = (&*direct, may_be) {
            let made = draft.on_device(way.shown).and_then(|(slots, window)| Ok((slots, show(&window)?)));
            match made {
                Ok((slots, told)) => return Ok(Made { slots, needs_flush: way.needs_flush, told: Ok(told) }),
                Err(error) => *direct = Err(error.to_string()),
            }
        }
        let slots = draft.pinned()?;
        let told = show(&slots.window());
        Ok(Made { slots, needs_flush: false, told })
    }
}

/// Refuses links that do not take the longest piece, as some may be copied.
fn fits(links: &SideLinks, draft: &Draft) -> Result<()> {
    let (room, longest) = (links.slot_bytes(), draft.most_slot_bytes());
    if room >= longest {
        return Ok(());
    }
    let what = format!("pieces of {longest} bytes over links whose slots have {room}");
    Err(Error::unsupported(what, "raise RDMACCL_SLOT_BYTES"))
}
