//! Who shares this rank's core.

use super::Communicator;

impl Communicator {
    /// Whether a running call waits for a rank that was last seen on this very core, and so is not running now.
    /// Tells the peers where this rank is, if it has moved. An error shows at the next step.
    #[inline(never)]
    pub(super) fn awaits_neighbour(&mut self, running: &[usize]) -> bool {
        let core = rustix::thread::sched_getcpu() as u32;
        if self.core.replace(core) != Some(core) {
            self.routes.set_core(core);
        }
        let routes = &mut self.routes;
        running.iter().any(|&index| {
            let schedule = &self.plans.schedules[index];
            schedule.awaits(routes, |routes, peer| routes.core_of(peer) == Some(core)).unwrap_or(false)
        })
    }
}
