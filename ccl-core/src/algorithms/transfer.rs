//! `transfer`: one rank sends, another receives.
//!
//! The plan of a transfer is for two ranks, of which the root is the sender. A communicator writes the program of
//! its own side with the peer's real number; transfers have a channel of their own, so that they never meet a
//! collective's pieces.

use super::Algorithm;
use super::moves::{alone, from_on, one_lane, step, to_all_on};
use crate::plan::{Collective, Placement, Program, Rank, Sink, Source, Spec};

/// The channel of all transfers.
pub const CHANNEL: u16 = u16::MAX;

/// What a transfer is planned as: two ranks, the sender first.
pub const SPEC: Spec = Spec::new(Collective::SendRecv, 2, 0, 1);

/// The rank of [`SPEC`] that sends.
pub const SENDER: Rank = 0;
/// The rank of [`SPEC`] that receives.
pub const RECEIVER: Rank = 1;

/// The sender's program.
pub fn send_to(peer: Rank) -> Program {
    one_lane(vec![step([Source::Input(0)], [to_all_on(CHANNEL, [peer])])])
}

/// The receiver's program.
pub fn receive_from(peer: Rank) -> Program {
    one_lane(vec![step([from_on(CHANNEL, peer)], [Sink::Output(0)])])
}

/// The plan of both sides; see the [module](self). It does no collective, so it is not among
/// [`all`](super::all).
pub struct Transfer;

impl Algorithm for Transfer {
    fn name(&self) -> &'static str {
        "transfer"
    }

    fn parts(&self, collective: Collective, Placement { ranks, .. }: Placement) -> Option<u32> {
        (collective == Collective::SendRecv && ranks == 2).then_some(1)
    }

    fn depth(&self, _: Collective, _: Placement) -> u32 {
        1
    }

    fn program(&self, spec: &Spec, rank: Rank) -> Program {
        match spec.ranks {
            1 => alone(spec),
            _ if rank == spec.root => send_to(1 - rank),
            _ => receive_from(spec.root),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithms::plan;
    use crate::verify::{Limits, verify};

    #[test]
    fn both_sides_fit() {
        {
            let plan = plan(&Transfer, Collective::SendRecv, 2, 0).expect("a transfer");
            let proof = verify(&plan, &Limits { credits: 1, scratch: 0 }).expect("right");
            assert_eq!((proof.messages, proof.links), (1, 1));
        }
        assert!(plan(&Transfer, Collective::SendRecv, 3, 0).is_none());
    }
}
