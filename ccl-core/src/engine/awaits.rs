//! All that a blocked call lacks.

use super::schedule::{Operand, READY, Schedule};
use crate::error::Result;
use crate::plan::Rank;
use crate::transport::Fabric;

impl Schedule {
    /// Whether the call still waits for one of the ranks of which `is_one` is true. Unlike [`waits`](Schedule::waits) it
    /// asks for everything that a blocked move lacks: one that combines the pieces of several peers is blocked by
    /// the first that is missing.
    pub fn awaits<F: Fabric + ?Sized>(
        &self,
        fabric: &mut F,
        is_one: impl Fn(&F, Rank) -> bool,
    ) -> Result<bool> {
        let machine = &self.machine;
        let any = |fabric: &F, peers: &[Rank]| peers.iter().any(|peer| is_one(fabric, *peer));
        for lane in machine.lanes.iter().filter(|lane| self.is_running() && lane.blocked != READY) {
            let code = machine.moves[lane.at as usize];
            let blocked = code.from + lane.blocked;
            for operand in &machine.operands[blocked as usize..code.end as usize] {
                let lacks = match *operand {
                    Operand::Receive { from, end } => {
                        any(fabric, &self.ends[end as usize].peers) && fabric.peek(from)?.is_none()
                    }
                    // A credit is asked for when all pieces are there.
                    Operand::Send { end, .. } => {
                        blocked >= code.into && any(fabric, &self.ends[end as usize].peers)
                    }
                    Operand::Input(_) | Operand::Output(_) | Operand::Scratch(_) => false,
                };
                if lacks {
                    return Ok(true);
                }
            }
        }
        Ok(self.unsettled().is_some_and(|wait| any(fabric, wait.on.peers())))
    }
}

#[cfg(test)]
mod tests {
    use crate::algorithms::{Algorithm as _, OneShot};
    use crate::engine::{Layout, Progress, Schedule, Task};
    use crate::plan::{Collective, Rank, Spec};
    use crate::simd::{Buffers, Reducer};
    use crate::transport::conformance::{connect, mesh};
    use crate::transport::{LocalHub, LocalTransport};
    use crate::{DataType, ReduceOp};
    use std::sync::Arc;

    const RANKS: u32 = 4;

    struct Member {
        transport: LocalTransport,
        schedule: Schedule,
        task: Arc<Task>,
    }

    impl Member {
        fn step(&mut self) -> Progress {
            let mut output = [0; 4];
            let buffers = Buffers::new(&[1; 4], &mut output);
            self.schedule.step(&mut self.transport, &buffers).unwrap()
        }

        /// The ranks that it says it awaits.
        fn awaits(&mut self) -> Vec<Rank> {
            let mut awaits =
                |rank| self.schedule.awaits(&mut self.transport, |_, peer| peer == rank).unwrap();
            (0..RANKS).filter(|rank| awaits(*rank)).collect()
        }
    }

    fn members(collective: Collective, credits: u32) -> Vec<Member> {
        let hub = LocalHub::new(RANKS, 64, credits);
        let mut transports: Vec<_> = (0..RANKS).map(|rank| hub.transport(rank)).collect();
        connect(&mut transports, &mesh(RANKS, 1));
        let spec = Spec::new(collective, RANKS, 0, 1);
        let member = |(rank, mut transport): (u32, LocalTransport)| {
            let program = OneShot.program(&spec, rank);
            let mut schedule = Schedule::bind(&spec, rank, &program, &mut transport).unwrap();
            let layout = Layout::new(&spec, rank, 4, DataType::U8, 64).unwrap();
            let reducer = Reducer::new(DataType::U8, ReduceOp::Sum, RANKS).unwrap();
            let task = Arc::new(schedule.task(layout, reducer).unwrap());
            schedule.start(&task, 7, 0).unwrap();
            Member { transport, schedule, task }
        };
        (0..).zip(transports).map(member).collect()
    }

    #[test]
    fn every_missing_piece_of_a_move_is_seen_and_not_the_first_alone() {
        let mut m = members(Collective::AllReduce, 2);
        assert!(m[0].awaits().is_empty(), "it has not begun");
        while m[0].step() != Progress::Blocked {}
        assert_eq!(m[0].awaits(), [1, 2, 3]);
        m[2].step();
        assert_eq!(m[0].awaits(), [1, 3]);
        m[1].step();
        m[3].step();
        assert!(m[0].awaits().is_empty(), "all is there");
        while m[0].step() != Progress::Done {}
        assert!(m[0].awaits().is_empty(), "it is over");
    }

    #[test]
    fn a_missing_credit_is_awaited_from_the_receivers() {
        let mut m = members(Collective::Broadcast, 1);
        while m[0].step() != Progress::Done {}
        let again = Arc::clone(&m[0].task);
        m[0].schedule.start(&again, 7, 1).unwrap();
        assert_eq!(m[0].step(), Progress::Blocked);
        assert_eq!(m[0].awaits(), [1, 2, 3]);
    }
}
