//! Short calls in one go: as long as nothing has to be waited for, no call runs and no lane has a place to be kept.

use super::quick::Tried;
use super::run::Progress;
use super::schedule::{READY, Schedule, Share};
use super::task::Task;
use crate::error::Result;
use crate::kernels::{Buffers, Direction};
use crate::transport::Fabric;
use std::sync::Arc;

impl Schedule {
    /// [`start`](Schedule::start), and with a call that is short enough a first [`step`](Schedule::step) at once, for a part of the
    /// price. Once it has sent all that it sends, it looks `looks` times more for each piece that has not come. After `Done` no
    /// call runs; otherwise the call that has begun is to be stepped.
    #[inline(always)]
    pub fn dash<F: Fabric + ?Sized>(
        &mut self,
        task: &Arc<Task>,
        (tag, sequence): (u64, u64),
        looks: u32,
        fabric: &mut F,
        buffers: &Buffers<'_>,
    ) -> Result<Progress> {
        if !task.is_brief || self.is_running {
            self.start(task, tag, sequence)?;
            return Ok(Progress::Moved);
        }
        self.take(task)?;
        self.share = Share::WHOLE;
        if task.is_long {
            return self.dash_long(task, (tag, sequence), looks, fabric, buffers);
        }
        self.dash_on::<false, F>(task, (tag, sequence), Direction::Forwards, looks, fabric, buffers)
    }

    /// With long pieces, in the direction of the call. Where some travel by reference it ends when these are released.
    #[inline(never)]
    fn dash_long<F: Fabric + ?Sized>(
        &mut self,
        task: &Arc<Task>,
        (tag, sequence): (u64, u64),
        mut looks: u32,
        fabric: &mut F,
        buffers: &Buffers<'_>,
    ) -> Result<Progress> {
        self.machine.lending.start();
        let direction = task.direction(sequence);
        let progress = self.dash_on::<true, F>(task, (tag, sequence), direction, looks, fabric, buffers)?;
        if progress != Progress::Done {
            return Ok(progress);
        }
        loop {
            match self.machine.settle(fabric) {
                Ok(true) => return Ok(Progress::Done),
                Ok(false) if looks > 0 => looks -= 1,
                unsettled => {
                    self.machine.lanes.iter_mut().for_each(|lane| lane.at = lane.end);
                    self.go_on(task, tag, sequence);
                    return unsettled.map(|_| Progress::Blocked);
                }
            }
        }
    }

    #[inline(always)]
    fn dash_on<const LENDS: bool, F: Fabric + ?Sized>(
        &mut self,
        task: &Arc<Task>,
        (tag, sequence): (u64, u64),
        direction: Direction,
        looks: u32,
        fabric: &mut F,
        buffers: &Buffers<'_>,
    ) -> Result<Progress> {
        // As a root has it, and each end of a transfer: without the loop's places a root's broadcast of 8 bytes takes 0.86 of the time.
        if let [only] = &*task.quick {
            return match only.try_move::<LENDS, F>(&task.reducer, (tag, direction), fabric, buffers) {
                Tried::Made => Ok(Progress::Done),
                Tried::Lent { to, end } => {
                    self.machine.lending.note(to, end, 0);
                    Ok(Progress::Done)
                }
                stopped => self.stop((0, stopped), (task, tag, sequence), fabric, buffers),
            };
        }
        // Moves lie in the order of their lanes, which matter only where one stops.
        for (at, quick) in task.quick.iter().enumerate() {
            let mut looks = if at >= task.all_sent { looks } else { 0 };
            loop {
                match quick.try_move::<LENDS, F>(&task.reducer, (tag, direction), fabric, buffers) {
                    Tried::Made => break,
                    Tried::Lent { to, end } => {
                        self.machine.lending.note(to, end, at as u32);
                        break;
                    }
                    Tried::Waits(_) if looks > 0 => looks -= 1,
                    stopped => {
                        return self.stop((at as u32, stopped), (task, tag, sequence), fabric, buffers);
                    }
                }
            }
        }
        Ok(Progress::Done)
    }

    /// A lane stops `at` a move, of which that became. Those before it are done, those after it go as far as they can, and then
    /// the call runs.
    #[inline(never)]
    fn stop<F: Fabric + ?Sized>(
        &mut self,
        (at, stopped): (u32, Tried),
        (task, tag, sequence): (&Arc<Task>, u64, u64),
        fabric: &mut F,
        buffers: &Buffers<'_>,
    ) -> Result<Progress> {
        let direction = task.direction(sequence);
        let mut known = Some(stopped);
        for lane in &mut self.machine.lanes {
            lane.at = at.clamp(lane.first, lane.end);
            while lane.at < lane.end {
                let quick = &task.quick[lane.at as usize];
                let tried = known.take();
                match tried.unwrap_or_else(|| {
                    quick.try_move::<true, F>(&task.reducer, (tag, direction), fabric, buffers)
                }) {
                    Tried::Made => {
                        lane.at += 1;
                        continue;
                    }
                    Tried::Lent { to, end } => {
                        self.machine.lending.note(to, end, lane.at);
                        lane.at += 1;
                        continue;
                    }
                    Tried::Waits(operand) => lane.blocked = operand,
                    // A step makes it.
                    Tried::Unforeseen => lane.blocked = READY,
                    Tried::Failed(error) => {
                        self.start(task, tag, sequence)?;
                        return Err(error);
                    }
                }
                break;
            }
        }
        self.go_on(task, tag, sequence);
        Ok(Progress::Blocked)
    }

    /// The call runs from here on, each lane from where it is.
    fn go_on(&mut self, task: &Task, tag: u64, sequence: u64) {
        let machine = &mut self.machine;
        machine.running = 0;
        machine.face(task.direction(sequence), task);
        for (lane, run) in machine.lanes.iter_mut().zip(&task.stages) {
            (lane.tile, lane.skip, lane.tiles) = (0, 0, run.tiles);
            if lane.at == lane.end {
                (lane.at, lane.tile) = (lane.first, run.tiles);
            } else {
                machine.running += 1;
            }
        }
        (self.tag, self.sequence, self.is_running) = (tag, sequence, true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithms::{Algorithm as _, OneShot};
    use crate::engine::{Layout, ReferFrom, WaitOn};
    use crate::error::ErrorKind;
    use crate::kernels::{Piece, PieceMut, Reducer};
    use crate::plan::{Collective, Spec};
    use crate::transport::conformance::{connect, mesh};
    use crate::transport::{Arrival, LocalHub, LocalTransport, ReceiverId, Refer, SenderId};
    use crate::verify::May;
    use crate::{DataType, ReduceOp};

    const RANKS: u32 = 2;
    const CREDITS: u32 = 4;

    /// Looks of a call at what has not come.
    const LOOKS: u32 = 3;

    /// Pieces come late: only after so many looks.
    struct Late {
        transport: LocalTransport,
        looks: u32,
        in_vain: u32,
    }

    impl Fabric for Late {
        fn reserve(&mut self, to: SenderId, len: usize) -> Result<Option<PieceMut>> {
            self.transport.reserve(to, len)
        }

        fn publish(&mut self, to: SenderId, tag: u64) -> Result<()> {
            self.transport.publish(to, tag)
        }

        fn peek(&mut self, from: ReceiverId) -> Result<Option<Arrival>> {
            self.looks += 1;
            if self.looks <= self.in_vain { Ok(None) } else { self.transport.peek(from) }
        }

        fn release(&mut self, from: ReceiverId) -> Result<()> {
            self.transport.release(from)
        }

        fn refer(&mut self, to: SenderId, piece: Piece) -> Result<Refer> {
            self.transport.refer(to, piece)
        }

        fn settled(&mut self, to: SenderId) -> Result<bool> {
            self.looks += 1;
            self.transport.settled(to)
        }
    }

    struct Member {
        transport: Late,
        schedule: Schedule,
        task: Arc<Task>,
        send: [u8; 8],
        recv: [u8; 8],
    }

    impl Member {
        fn dash(&mut self, tag: u64) -> Result<Progress> {
            let buffers = Buffers::new(&self.send, &mut self.recv);
            self.schedule.dash(&self.task, (tag, 1), LOOKS, &mut self.transport, &buffers)
        }

        fn step(&mut self) -> Result<Progress> {
            let buffers = Buffers::new(&self.send, &mut self.recv);
            self.schedule.step(&mut self.transport, &buffers)
        }
    }

    fn members(collective: Collective, op: ReduceOp) -> [Member; RANKS as usize] {
        members_who(false, collective, op)
    }

    fn members_who(lend: bool, collective: Collective, op: ReduceOp) -> [Member; RANKS as usize] {
        let hub = LocalHub::new(RANKS, 64, CREDITS);
        let mut transports = [0, 1].map(|rank| hub.transport(rank));
        connect(&mut transports, &mesh(RANKS, 1));
        let spec = Spec::new(collective, RANKS, 0, OneShot.parts(collective, RANKS.into()).unwrap());
        let mut rank = 0..;
        transports.map(|mut transport| {
            let rank = rank.next().unwrap();
            let program = OneShot.program(&spec, rank);
            let mut schedule = Schedule::bind(&spec, rank, &program, &mut transport).unwrap();
            if lend {
                let may = vec![May { apart: true, in_place: true }; schedule.machine.moves.len()];
                schedule.allow_references(&program, &may, ReferFrom::ALWAYS).unwrap();
            }
            let layout = Layout::new(&spec, rank, 4, DataType::U8, 64).unwrap();
            let task =
                Arc::new(schedule.task(layout, Reducer::new(DataType::U8, op, RANKS).unwrap()).unwrap());
            let send = [1, 2, 3, 4, 5, 6, 7, 8].map(|byte| byte + 10 * rank as u8);
            let transport = Late { transport, looks: 0, in_vain: 0 };
            Member { transport, schedule, task, send, recv: [0; 8] }
        })
    }

    const SUM: [u8; 4] = [12, 14, 16, 18];

    #[test]
    fn what_need_not_wait_is_done_at_once() {
        let mut m = members(Collective::Broadcast, ReduceOp::Sum);
        for _ in 0..2 {
            for member in &mut m {
                member.recv = [0; 8];
                assert_eq!(member.dash(7).unwrap(), Progress::Done);
                assert!(!member.schedule.is_running());
                assert_eq!(member.recv, [1, 2, 3, 4, 0, 0, 0, 0]);
            }
        }
    }

    #[test]
    fn what_waits_goes_on_where_it_stopped() {
        let mut m = members(Collective::AllReduce, ReduceOp::Sum);
        for call in 1..4 {
            assert_eq!(m[0].dash(call).unwrap(), Progress::Blocked);
            assert_eq!(m[0].schedule.number(), 1, "it runs");
            assert_eq!(m[0].step().unwrap(), Progress::Blocked, "what was sent is not sent again");
            let waits: Vec<_> =
                m[0].schedule.waits().map(|wait| (wait.mv, wait.on.peers().to_vec())).collect();
            assert_eq!(waits, [(1, vec![1])]);
            assert_eq!(m[1].dash(call).unwrap(), Progress::Done);
            assert_eq!(m[0].step().unwrap(), Progress::Done);
            assert!(m.iter().all(|member| member.recv[..4] == SUM), "{:?}", m.each_ref().map(|m| m.recv));
        }
    }

    #[test]
    fn what_was_lent_is_waited_for() {
        let mut m = members_who(true, Collective::AllReduce, ReduceOp::Sum);
        for call in 1..4 {
            assert_eq!(m[0].dash(call).unwrap(), Progress::Blocked);
            m[1].transport.looks = 0;
            assert_eq!(m[1].dash(call).unwrap(), Progress::Blocked);
            assert_eq!((m[1].recv[..4] == SUM, m[1].transport.looks), (true, 1 + 1 + LOOKS));
            let waits: Vec<_> = m[1].schedule.waits().map(|wait| (wait.mv, wait.on)).collect();
            let WaitOn::Credit { peers, .. } = waits[0].1 else { panic!("{waits:?}") };
            assert_eq!((waits.len(), waits[0].0, peers), (1, 0, &[0][..]));
            assert_eq!(m[1].step().unwrap(), Progress::Blocked);
            assert_eq!(m[0].step().unwrap(), Progress::Done);
            assert_eq!(m[1].step().unwrap(), Progress::Done);
            assert!(m.iter().all(|member| member.recv[..4] == SUM && !member.schedule.is_running()));
        }
        let mut m = members_who(true, Collective::Broadcast, ReduceOp::Sum);
        for call in 1..4 {
            m.iter_mut().for_each(|member| member.recv = [0; 8]);
            assert_eq!(m[0].dash(call).unwrap(), Progress::Blocked);
            assert_eq!(m[1].dash(call).unwrap(), Progress::Done);
            assert_eq!(m[0].step().unwrap(), Progress::Done);
            assert!(m.iter().all(|member| member.recv == [1, 2, 3, 4, 0, 0, 0, 0]));
        }
    }

    #[test]
    fn who_has_sent_looks_for_a_while() {
        let mut m = members(Collective::AllReduce, ReduceOp::Sum);
        assert_eq!(m[0].dash(7).unwrap(), Progress::Blocked);
        assert_eq!(m[0].transport.looks, 1 + LOOKS);
        m[1].transport.in_vain = LOOKS;
        assert_eq!(m[1].dash(7).unwrap(), Progress::Done);
        assert_eq!(m[0].step().unwrap(), Progress::Done);

        let mut m = members(Collective::Broadcast, ReduceOp::Sum);
        assert_eq!(m[1].dash(7).unwrap(), Progress::Blocked);
        assert_eq!(m[1].transport.looks, 1, "who only receives looks once");
    }

    #[test]
    fn a_credit_is_waited_for_too() {
        let mut m = members(Collective::Broadcast, ReduceOp::Sum);
        let root = |m: &mut Member| m.dash(7).unwrap();
        assert!((0..CREDITS).all(|_| root(&mut m[0]) == Progress::Done));
        assert_eq!(root(&mut m[0]), Progress::Blocked);
        assert_eq!(m[0].step().unwrap(), Progress::Blocked);
        assert_eq!(m[1].dash(7).unwrap(), Progress::Done);
        assert_eq!(m[0].step().unwrap(), Progress::Done);
    }

    #[test]
    fn a_piece_of_another_call_is_told_by_the_next_step() {
        let mut m = members(Collective::AllReduce, ReduceOp::Sum);
        m[0].dash(7).unwrap();
        assert_eq!(m[1].dash(8).unwrap(), Progress::Blocked);
        let error = m[1].step().unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Mismatch { peer: 0, ours: 8, theirs: 7, .. }), "{error}");
    }

    #[test]
    fn what_is_divided_at_the_end_is_only_begun() {
        let mut m = members(Collective::AllReduce, ReduceOp::Avg);
        for member in &mut m {
            assert_eq!(member.dash(7).unwrap(), Progress::Moved);
            assert!(member.schedule.is_running());
        }
        while m[0].step().unwrap() != Progress::Done {
            m[1].step().unwrap();
        }
        assert_eq!(m[0].recv[..4], SUM.map(|sum| sum / 2));
    }

    #[test]
    fn one_call_at_a_time() {
        let mut m = members(Collective::AllReduce, ReduceOp::Sum);
        m[0].dash(7).unwrap();
        assert!(m[0].dash(7).is_err());
    }
}
