//! A communicator's calls on device memory, one after another.

use super::{DeviceCall, DeviceStream, Driver, Staged};
use crate::{AbortHandle, Communicator, ErrorKind, Operation, Result, Stream, spawn_quiet};
use ccl_transport_cuda::staging::Stage;
use std::time::Duration;

/// What a communicator has for calls on the memory of a device: streams and pinned memory there, and a thread here, `ccl-stream`,
/// which makes the host's part of each call.
///
/// It is dropped when all its jobs are over. What the device has yet to do then, behind the program's own work, a thread waits for.
pub struct DeviceLine {
    worker: Stream,
    /// Until it is dropped.
    stage: Option<Stage>,
}

/// How long its end waits for the device itself: as long as a few copies take.
const PATIENCE: Duration = Duration::from_millis(20);

impl DeviceLine {
    /// For the device of this number, with so much pinned memory at most.
    pub fn new(driver: Driver, device: u32, limit: usize) -> Result<DeviceLine> {
        let primary = driver.device(device)?.primary()?;
        Ok(DeviceLine { worker: Stream::new()?, stage: Some(Stage::new(&primary, limit)?) })
    }

    /// The number of the device.
    pub fn device(&self) -> u32 {
        self.stage.as_ref().map_or(0, Stage::device)
    }

    /// Puts the device's part of some calls on the caller's stream, and returns the host's part, for [`make`] in a job that is
    /// [submitted](DeviceLine::submit) in the same order. The buffers hold addresses of device or pinned memory, and
    /// stay until the caller's stream has passed.
    ///
    /// [`make`]: DeviceLine::make
    pub fn enqueue(&mut self, stream: usize, operations: Vec<Operation<'static>>) -> Result<Vec<Staged>> {
        let stage = self.stage.as_mut().expect("it is taken when this is dropped");
        stage.enqueue(stream, operations)
    }

    /// Makes calls on memory of the device and waits for them: by kernels, where the communicator has some; else with the host's part on this
    /// thread. The buffers are as long as the calls say, on a stream of the same device.
    pub fn run(
        &mut self,
        comm: &mut Communicator,
        stream: &DeviceStream,
        calls: Vec<DeviceCall<'_>>,
    ) -> Result<()> {
        if let Some(engine) = comm.device_engine() {
            let calls: Vec<_> = calls.into_iter().map(DeviceCall::into_operation).collect();
            return engine.run(stream, &calls);
        }
        let stage = self.stage.as_mut().expect("it is taken when this is dropped");
        let abort = comm.abort_handle();
        stage.run(stream, calls, |steps| {
            DeviceLine::make(steps, &abort, |operations| {
                let mut batch = comm.batch();
                operations.into_iter().for_each(|operation| batch.push(operation));
                batch.run()
            })
        })
    }

    /// Has the thread do a job when those before it are done.
    pub fn submit(&self, job: impl FnOnce() -> Result<()> + Send + 'static) {
        self.worker.submit(job);
    }

    /// Makes the host's part of calls: waits for each step's buffers, and gives its calls to `run`. Whatever happens, the device is
    /// not kept waiting. What goes wrong on the device ends the communicator for all ranks, since its peers are
    /// in the call.
    pub fn make(
        steps: Vec<Staged>,
        abort: &AbortHandle,
        mut run: impl FnMut(Vec<Operation<'static>>) -> Result<()>,
    ) -> Result<()> {
        for mut step in steps {
            let mut pause = Pause::default();
            while !step.is_ready().inspect_err(|error| abort.revoke(&error.to_string()))? {
                if abort.is_aborted() {
                    return Err(ErrorKind::Aborted.into());
                }
                pause.next();
            }
            run(step.take())?;
        }
        Ok(())
    }
}

impl Drop for DeviceLine {
    fn drop(&mut self) {
        let Some(stage) = self.stage.take() else { return };
        if !stage.ends_within(PATIENCE) {
            // Without a thread the stage looks after itself.
            let _ = spawn_quiet("ccl-device", move || while !stage.ends_within(Duration::from_secs(1)) {});
        }
    }
}

/// Yields for as long as a short copy takes, then sleeps in growing steps.
#[derive(Default)]
struct Pause {
    rounds: u32,
}

impl Pause {
    const YIELDS: u32 = 100;
    const SHORTEST: Duration = Duration::from_micros(10);

    fn next(&mut self) {
        self.rounds = self.rounds.saturating_add(1);
        if self.rounds <= Pause::YIELDS {
            std::thread::yield_now();
        } else {
            std::thread::sleep(Pause::SHORTEST * (1 << (self.rounds - Pause::YIELDS).min(6)));
        }
    }
}
