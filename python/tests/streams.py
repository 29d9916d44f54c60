"""Calls on CUDA tensors beside streams: what comes before a call, what comes after it, and that the host goes on meanwhile.

A gate holds a stream until it is opened, so nothing here depends on how fast anything is. What is put on a stream that is held lies on the device: a copy
from the host's memory has the host wait for it.
"""

import threading
from datetime import timedelta

import torch
import torch.distributed as dist

from fake import Fake
from ranks import WORLD, Ranks

ONES = torch.ones(5000)
TOTAL = float(sum(range(WORLD)))


class Streams(Ranks):
    fake: Fake

    def mine(self, device: int = 0) -> torch.Tensor:
        return (ONES * self.rank).to(f"cuda:{device}")

    def held(self, device: int = 0) -> object:
        """A closed gate on the current stream."""
        gate = self.fake.Gate(device)
        gate.hold()
        return gate

    def all_are_here(self) -> None:
        """By the host alone."""
        dist.monitored_barrier(timeout=timedelta(seconds=30))

    def test_before_and_after(self) -> None:
        """A call takes what the stream has written before, and the stream takes the call's result; the host waits for neither."""
        for stream in (0, self.fake.new_stream(0)):
            with self.fake.on_stream(stream):
                new, x = self.mine(), torch.full_like(self.mine(), -1)
                gate = self.held()
                x.copy_(new)
                work = dist.all_reduce(x, async_op=True)
                work.wait()
                after = x.clone()
                self.assertFalse(work.is_completed())
                self.assertFalse(self.fake.is_idle(0))
                gate.open()
                self.same(after.cpu(), ONES * TOTAL, "what the stream has after the call")
                self.assertTrue(work.is_completed() and work.is_success())

    def test_blocking_calls_leave_the_host_alone(self) -> None:
        new, x, out = self.mine(), torch.full_like(self.mine(), -1), torch.empty(WORLD * len(ONES), device="cuda:0")
        gate = self.held()
        x.copy_(new)
        dist.all_reduce(x)
        dist.all_gather_into_tensor(out, x)
        after = out.clone()
        gate.open()
        self.same(after.cpu(), torch.full((WORLD * len(ONES),), TOTAL), "after two calls")

    def test_one_rank_is_late(self) -> None:
        """All ranks wait on their streams for the one whose stream is held; none does on its host."""
        x = self.mine()
        gate = self.held() if self.rank == 2 else None
        work = dist.all_reduce(x, async_op=True)
        work.wait()
        after = x.clone()
        self.all_are_here()
        self.assertFalse(work.is_completed())
        self.all_are_here()
        if gate:
            gate.open()
        self.same(after.cpu(), ONES * TOTAL, "after the late one")

    def test_another_stream_waits_for_itself(self) -> None:
        """Who waits is the stream that is current at `wait`."""
        other = self.fake.new_stream(0)
        x = self.mine()
        gate = self.held()
        work = dist.all_reduce(x, async_op=True)
        with self.fake.on_stream(other):
            work.wait()
            after = x.clone()
            self.assertFalse(self.fake.is_idle(0))
        gate.open()
        with self.fake.on_stream(other):
            self.same(after.cpu(), ONES * TOTAL, "on the other stream")

    def test_future(self) -> None:
        """It is there at once; what is chained to it runs on a stream that waits."""
        x = self.mine()
        gate = self.held()
        future = dist.all_reduce(x, async_op=True).get_future()
        half = future.then(lambda done: done.value()[0].clone())
        self.assertTrue(future.done() and half.done())
        found = half.wait()
        copied = found.clone()
        self.assertFalse(self.fake.is_idle(0))
        gate.open()
        self.same(copied.cpu(), ONES * TOTAL, "what the chained function has copied")

    def test_tensors_may_be_dropped(self) -> None:
        """The memory of a call's tensors is not used again before the call is over, also if nobody has waited for it."""
        source, found = self.mine(), torch.empty_like(ONES, device="cuda:0")
        parts = [(ONES * 7).to("cuda:0") for _ in range(WORLD)]
        side = self.fake.new_stream(0)
        # What writes the parts themselves is not to come after what is written in their place.
        self.fake.synchronize(0)
        gate = self.held()
        if self.rank == 0:
            work = dist.scatter(found, parts, async_op=True)
        else:
            work = dist.scatter(found, async_op=True)
        del parts
        broadcast = dist.broadcast(source if self.rank == 1 else torch.empty_like(source), 1, async_op=True)
        del source
        # New tensors of the same sizes, written by a stream that waits for nothing.
        new = [torch.empty_like(ONES, device="cuda:0") for _ in range(WORLD + 4)]
        with self.fake.on_stream(side):
            for one in new:
                one.copy_(-ONES)
            self.fake.synchronize(0)
        gate.open()
        work.wait()
        broadcast.wait()
        self.same(found.cpu(), ONES * 7, "what was scattered from dropped tensors")
        for one in new:
            self.same(one.cpu(), -ONES, "a new tensor")

    def test_copies_are_ordered(self) -> None:
        """Where a call needs copies, since its tensors are not in a row, these are in the order of the streams too."""
        new = [(ONES * self.rank).to("cuda:0") for _ in range(WORLD)]
        parts, found = [torch.full_like(one, -1) for one in new], [torch.full_like(one, -2) for one in new]
        gate = self.held()
        for part, one in zip(parts, new):
            part.copy_(one)
        work = dist.all_to_all(found, parts, async_op=True)
        self.assertFalse(work.is_completed())
        work.wait()
        after = [one.clone() for one in found]
        gate.open()
        for rank, one in enumerate(after):
            self.same(one.cpu(), ONES * rank, rank)

    def test_barrier_holds_the_host(self) -> None:
        gate = self.held() if self.rank == 1 else None
        work = dist.barrier(async_op=True, device_ids=[0])
        self.all_are_here()
        self.assertFalse(work.is_completed())
        self.all_are_here()
        opener = threading.Timer(0.05, gate.open) if gate else threading.Timer(0, lambda: None)
        opener.start()
        work.wait()
        self.assertTrue(work.is_completed())
        opener.join()

    def test_wait_with_a_timeout_holds_the_host(self) -> None:
        x = self.mine()
        gate = self.held()
        work = dist.all_reduce(x, async_op=True)
        with self.assertRaisesRegex(dist.DistBackendError, "Timed out waiting 50ms"):
            work.wait(timedelta(milliseconds=50))
        gate.open()
        work.wait(timedelta(seconds=30))
        self.assertTrue(work.is_completed())
        self.same(x.cpu(), ONES * TOTAL, "after the second wait")

    def test_coalesced(self) -> None:
        xs = [torch.full((n,), float(self.rank), device="cuda:0") for n in (1, 100, 3)]
        gate = self.held()
        with dist._coalescing_manager(async_ops=True, device=torch.device("cuda:0")) as calls:
            for x in xs:
                dist.all_reduce(x)
        calls.wait()
        copies = [x.clone() for x in xs]
        gate.open()
        for copied in copies:
            self.same(copied.cpu(), torch.full((len(copied),), TOTAL), len(copied))

    def test_transfers_take_what_was_written_before(self) -> None:
        new, x, found = self.mine(), torch.full_like(self.mine(), -1), torch.full_like(self.mine(), -2)
        gate = self.held()
        x.copy_(new)
        sent = dist.isend(x, (self.rank + 1) % WORLD)
        received = dist.irecv(found, (self.rank - 1) % WORLD)
        gate.open()
        received.wait()
        sent.wait()
        self.same(found.cpu(), ONES * ((self.rank - 1) % WORLD), "received")

    def test_devices_differ(self) -> None:
        """A rank's device is its own; each device of a rank has calls of its own, beside those on host memory."""
        own = self.rank % 2
        x, host = self.mine(own), ONES * self.rank
        calls = [dist.all_reduce(x, async_op=True), dist.all_reduce(host, async_op=True)]
        other = self.mine(1 - own)
        calls.append(dist.all_reduce(other, async_op=True))
        for call in calls:
            call.wait()
        for one in (x, host, other):
            self.same(one.cpu(), ONES * TOTAL, one.device)
        with self.assertRaisesRegex(ValueError, "cuda:0 and on cpu in one call|cuda:1 and on cpu in one call"):
            dist.all_gather_into_tensor(torch.empty(len(ONES) * WORLD), x)
