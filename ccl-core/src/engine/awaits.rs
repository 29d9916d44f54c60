//! All that a blocked call lacks.

use super::schedule::{Operand, READY, Schedule};
use crate::error::Result;
use crate::plan::Rank;
use crate::transport::Fabric;

impl Schedule {
    /// Whether the call still waits for one of the ranks of which `is_one` is true. Unlike [`waits`](Schedule::waits) it
    /// asks for all that a lane lacks before it sends again: not for the first missing piece of a move alone, and not for the first
    /// move alone. What it lacks after that may depend on what it sends.
    pub fn awaits<F: Fabric + ?Sized>(
        &self,
        fabric: &mut F,
        is_one: impl Fn(&F, Rank) -> bool,
    ) -> Result<bool> {
        let machine = &self.machine;
        let any = |fabric: &F, peers: &[Rank]| peers.iter().any(|peer| is_one(fabric, *peer));
        for lane in machine.lanes.iter().filter(|lane| self.is_running() && lane.blocked != READY) {
            let moves = &machine.moves[lane.at as usize..lane.end as usize];
            let mut next = moves[0].from + lane.blocked;
            for code in moves {
                let mut sends = false;
                for operand in &machine.operands[next as usize..code.end as usize] {
                    let lacks = match *operand {
                        Operand::Receive { from, end } => {
                            any(fabric, &self.ends[end as usize].peers) && fabric.peek(from)?.is_none()
                        }
                        Operand::Send { end, .. } => {
                            sends = true;
                            // A credit is asked for when all pieces are there.
                            next >= code.into && any(fabric, &self.ends[end as usize].peers)
                        }
                        Operand::Input(_) | Operand::Output(_) | Operand::Scratch(_) => false,
                    };
                    if lacks {
                        return Ok(true);
                    }
                }
                if sends {
                    break;
                }
                next = code.end;
            }
        }
        Ok(self.unsettled().is_some_and(|wait| any(fabric, wait.on.peers())))
    }
}

#[cfg(test)]
mod tests {
    use crate::algorithms::{Algorithm, OneShot, Recursive};
    use crate::engine::{Layout, Progress, Schedule, Task};
    use crate::kernels::{Buffers, Reducer};
    use crate::plan::{Collective, Rank, Spec};
    use crate::transport::conformance::{connect, mesh};
    use crate::transport::{LocalHub, LocalTransport};
    use crate::{DataType, ReduceOp};
    use std::sync::Arc;

    const RANKS: u32 = 4;

    struct Member {
        transport: LocalTransport,
        schedule: Schedule,
        task: Arc<Task>,
        output: Vec<u8>,
    }

    impl Member {
        fn step(&mut self) -> Progress {
            let buffers = Buffers::new(&[1; 4], &mut self.output);
            self.schedule.step(&mut self.transport, &buffers).unwrap()
        }

        /// The ranks that it says it awaits.
        fn awaits(&mut self) -> Vec<Rank> {
            let mut awaits =
                |rank| self.schedule.awaits(&mut self.transport, |_, peer| peer == rank).unwrap();
            (0..RANKS).filter(|rank| awaits(*rank)).collect()
        }
    }

    fn members(algorithm: &dyn Algorithm, collective: Collective, credits: u32) -> Vec<Member> {
        let hub = LocalHub::new(RANKS, 64, credits);
        let mut transports: Vec<_> = (0..RANKS).map(|rank| hub.transport(rank)).collect();
        connect(&mut transports, &mesh(RANKS, 1));
        let spec = Spec::new(collective, RANKS, 0, 1);
        let member = |(rank, mut transport): (u32, LocalTransport)| {
            let program = algorithm.program(&spec, rank);
            let mut schedule = Schedule::bind(&spec, rank, &program, &mut transport).unwrap();
            let layout = Layout::new(&spec, rank, 4, DataType::U8, 64).unwrap();
            let reducer = Reducer::new(DataType::U8, ReduceOp::Sum, RANKS).unwrap();
            let task = Arc::new(schedule.task(layout, reducer).unwrap());
            schedule.start(&task, 7, 0).unwrap();
            Member { transport, schedule, task, output: vec![0; 4 * spec.output_chunks(rank) as usize] }
        };
        (0..).zip(transports).map(member).collect()
    }

    #[test]
    fn every_missing_piece_of_a_move_is_seen_and_not_the_first_alone() {
        let mut m = members(&OneShot, Collective::AllReduce, 2);
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
    fn what_the_next_moves_lack_is_seen_too() {
        let mut m = members(&OneShot, Collective::AllGather, 2);
        while m[0].step() != Progress::Blocked {}
        assert_eq!(m[0].awaits(), [1, 2, 3]);
        m[1].step();
        assert_eq!(m[0].awaits(), [2, 3], "that of rank 3 is taken first");
        m[3].step();
        assert_eq!(m[0].step(), Progress::Moved);
        assert_eq!(m[0].awaits(), [2]);
    }

    #[test]
    fn what_depends_on_what_is_sent_later_is_not_awaited_yet() {
        let mut m = members(&Recursive, Collective::AllReduce, 2);
        while m[0].step() != Progress::Blocked {}
        assert_eq!(m[0].awaits(), [1]);
        m[1].step();
        while m[0].step() != Progress::Blocked {}
        assert_eq!(m[0].awaits(), [2]);
    }

    #[test]
    fn a_missing_credit_is_awaited_from_the_receivers() {
        let mut m = members(&OneShot, Collective::Broadcast, 1);
        while m[0].step() != Progress::Done {}
        let again = Arc::clone(&m[0].task);
        m[0].schedule.start(&again, 7, 1).unwrap();
        assert_eq!(m[0].step(), Progress::Blocked);
        assert_eq!(m[0].awaits(), [1, 2, 3]);
    }
}
