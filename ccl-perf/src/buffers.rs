//! The memory that calls send from and receive into, and where each rank's part of it lies.

use crate::device::OnDevice;
use crate::work::Work;
use ccl::{Buffers, Collective, Communicator, Result, SharedMemory};
use std::ops::{DerefMut, Range};

const PAGE: usize = 4096;

/// Page-aligned (or deliberately misaligned) bytes, touched before use.
pub(crate) struct Memory {
    bytes: Box<dyn DerefMut<Target = [u8]>>,
    start: usize,
    len: usize,
}

impl Memory {
    /// `len` bytes that start `unalign` bytes after the start of a page; `shared`: in memory that peers and networks use where it lies.
    pub(crate) fn new(len: usize, unalign: usize, shared: bool) -> Result<Memory> {
        let room = len + 2 * PAGE;
        let mut bytes: Box<dyn DerefMut<Target = [u8]>> =
            if shared { Box::new(SharedMemory::alloc(room)?) } else { Box::new(vec![0; room]) };
        // Written with a value that is not zero: the kernel would hand out one shared page of zeros.
        bytes.fill(0xa5);
        let start = bytes.as_ptr().align_offset(PAGE) + unalign;
        Ok(Memory { bytes, start, len })
    }

    fn all(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }
}

/// Where one rank's data lies in a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Bytes of the send buffer, 0 where the rank has none.
    pub(crate) input: usize,
    /// Bytes of the receive buffer, 0 where the rank has none.
    pub(crate) output: usize,
    /// The two in one buffer, for an in-place call.
    in_place: (Range<usize>, Range<usize>),
}

impl Layout {
    /// Of `rank` among `ranks`, with blocks of `block` bytes.
    pub(crate) fn new(collective: Collective, ranks: u32, rank: u32, root: u32, block: usize) -> Layout {
        let input = collective.input_blocks(ranks, rank, root) as usize * block;
        let output = collective.output_blocks(ranks, rank, root) as usize * block;
        let own = rank as usize * block;
        let in_place = match collective {
            Collective::AllGather | Collective::Gather if output > 0 => (own..own + input, 0..output),
            Collective::ReduceScatter | Collective::Scatter if input > 0 => (0..input, own..own + output),
            _ => (0..input, 0..output),
        };
        Layout { input, output, in_place }
    }

    /// Where the two lie in one buffer.
    pub(crate) fn in_place(&self) -> (Range<usize>, Range<usize>) {
        self.in_place.clone()
    }

    /// Of a rank that sends `bytes` and receives as many.
    pub(crate) fn whole(bytes: usize) -> Layout {
        Layout { input: bytes, output: bytes, in_place: (0..bytes, 0..bytes) }
    }
}

/// A rank's send and receive memory. With buffers on a device this is where their data is written and checked.
pub(crate) struct Pair {
    send: Memory,
    receive: Memory,
    device: Option<OnDevice>,
}

impl Pair {
    /// For calls of at most `bytes` in all.
    pub(crate) fn new(bytes: usize, unalign: usize, shared: bool) -> Result<Pair> {
        let memory = || Memory::new(bytes, unalign, shared);
        Ok(Pair { send: memory()?, receive: memory()?, device: None })
    }

    /// The same with buffers on a device.
    pub(crate) fn on_device(bytes: usize, unalign: usize, comm: &Communicator) -> Result<Pair> {
        let device = Some(OnDevice::new(comm, bytes, unalign)?);
        Ok(Pair { device, ..Pair::new(bytes, unalign, false)? })
    }

    /// Does a line's work once, on the memory where its buffers are.
    pub(crate) fn run(
        &mut self,
        comm: &mut Communicator,
        work: &Work,
        layout: &Layout,
        in_place: bool,
    ) -> Result<()> {
        match &mut self.device {
            Some(device) => device.run(comm, work, layout, in_place),
            None => work.run(comm, self.for_call(layout, in_place)),
        }
    }

    /// After the input was written: brings it to the device, if the buffers are there.
    pub(crate) fn written(&mut self, layout: &Layout) -> Result<()> {
        let reach = self.reach(layout);
        let Some(device) = &mut self.device else { return Ok(()) };
        device.write(&self.send.all()[..layout.input], &self.receive.all()[..reach])
    }

    fn reach(&self, layout: &Layout) -> usize {
        layout.output.max(layout.in_place.0.end).max(layout.in_place.1.end)
    }

    /// What a call is given.
    pub(crate) fn for_call(&mut self, layout: &Layout, in_place: bool) -> Buffers<'_> {
        if in_place {
            let (input, output) = layout.in_place.clone();
            return Buffers::in_place(self.receive.all(), input, output);
        }
        Buffers::new(&self.send.all()[..layout.input], &mut self.receive.all()[..layout.output])
    }

    /// The send buffer, to write the input into. The receive memory is spoilt first, so that nothing in it
    /// can be mistaken for a result.
    pub(crate) fn input(&mut self, layout: &Layout, in_place: bool) -> &mut [u8] {
        let reach = self.reach(layout);
        self.receive.all()[..reach].fill(0xa5);
        if in_place {
            return &mut self.receive.all()[layout.in_place.0.clone()];
        }
        &mut self.send.all()[..layout.input]
    }

    /// The receive buffer, to read the result from.
    pub(crate) fn output(&mut self, layout: &Layout, in_place: bool) -> Result<&[u8]> {
        let range = if in_place { layout.in_place.1.clone() } else { 0..layout.output };
        let output = &mut self.receive.all()[range.clone()];
        if let Some(device) = &self.device {
            device.read(range.start, output)?;
        }
        Ok(output)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_starts_where_it_was_asked_to() {
        for (unalign, shared) in [(0, false), (1, false), (64, true), (4095, true)] {
            let mut memory = Memory::new(100, unalign, shared).unwrap();
            assert_eq!(memory.all().as_ptr() as usize % PAGE, unalign);
            assert_eq!(memory.all().len(), 100);
        }
    }

    #[test]
    fn in_place_calls_lie_as_in_nccl() {
        let place = |collective, rank| Layout::new(collective, 4, rank, 1, 10).in_place;
        assert_eq!(place(Collective::AllReduce, 2), (0..10, 0..10));
        assert_eq!(place(Collective::AllGather, 2), (20..30, 0..40));
        assert_eq!(place(Collective::ReduceScatter, 2), (0..40, 20..30));
        assert_eq!(place(Collective::Broadcast, 1), (0..10, 0..10));
        assert_eq!(place(Collective::Broadcast, 2), (0..0, 0..10));
        assert_eq!(place(Collective::Reduce, 2), (0..10, 0..0));
    }
}
