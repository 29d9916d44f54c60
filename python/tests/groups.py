"""Groups, functional collectives, coalesced calls, and what a Work tells."""

from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed.device_mesh import init_device_mesh

from ranks import WORLD, Ranks, tensor


class Groups(Ranks):
    def total(self, group: dist.ProcessGroup | None, members: list[int]) -> None:
        if self.rank in members:
            mine = torch.tensor([float(self.rank)])
            dist.all_reduce(mine, group=group)
            self.same(mine, torch.tensor([float(sum(members))]), members)

    def test_new_group(self) -> None:
        """Overlapping groups, in an order that all ranks share."""
        for members in ([0, 1], [2, 3], [1, 2, 3], [3, 0], [2]):
            group = dist.new_group(members)
            self.total(group, members)
            if self.rank in members:
                self.assertEqual(dist.get_rank(group), members.index(self.rank) if members == sorted(members) else dist.get_rank(group))
                dist.destroy_process_group(group)

    def test_subgroups(self) -> None:
        mine, _ = dist.new_subgroups(2)
        self.total(mine, [0, 1] if self.rank < 2 else [2, 3])

    def test_many_groups_at_once(self) -> None:
        groups = [dist.new_group() for _ in range(8)]
        tensors = [torch.full((10,), float(self.rank + i)) for i in range(8)]
        works = [dist.all_reduce(t, group=g, async_op=True) for t, g in zip(tensors, groups)]
        for work in reversed(works):
            work.wait()
        for index, found in enumerate(tensors):
            self.same(found, torch.full((10,), 6.0 + WORLD * index), index)

    def test_split_group(self) -> None:
        self.beyond_gloo("splits no group")
        parts = [[0, 2], [1, 3]]
        group = dist.split_group(split_ranks=parts)
        self.total(group, parts[self.rank % 2])

    def test_mesh(self) -> None:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("rows", "columns"))
        self.total(mesh.get_group("rows"), [self.rank % 2, self.rank % 2 + 2])
        self.total(mesh.get_group("columns"), [self.rank // 2 * 2, self.rank // 2 * 2 + 1])

    def test_named_for_the_cpu_beside_another_backend(self) -> None:
        group = dist.new_group(backend=f"cpu:{self.backend},meta:fake")
        self.total(group, list(range(WORLD)))

    def test_monitored_barrier(self) -> None:
        dist.monitored_barrier(timeout=timedelta(seconds=20), wait_all_ranks=True)
        dist.monitored_barrier(timeout=timedelta(seconds=20))


class Functional(Ranks):
    """What DTensor, FSDP2 and compiled code call."""

    def test_reductions(self) -> None:
        everyone = list(range(WORLD))
        mine = tensor(self.rank, (8, 3), torch.float32)
        total = sum(tensor(rank, (8, 3), torch.float32) for rank in everyone)
        self.same(functional.all_reduce(mine, "sum", everyone) + 0, total, "all_reduce")
        self.same(functional.reduce_scatter_tensor(mine, "sum", 0, everyone) + 0, total.chunk(WORLD)[self.rank], "reduce_scatter")
        for found in functional.all_reduce_coalesced([mine, mine * 2], "sum", everyone)[:1]:
            self.same(found + 0, total, "all_reduce_coalesced")
        found = functional.reduce_scatter_tensor_coalesced([mine, mine], "sum", [0, 0], everyone)
        for one in found:
            self.same(one + 0, total.chunk(WORLD)[self.rank], "reduce_scatter_tensor_coalesced")

    def test_moves(self) -> None:
        everyone = list(range(WORLD))
        mine = tensor(self.rank, (8, 3), torch.float32)
        parts = [tensor(rank, (8, 3), torch.float32) for rank in everyone]
        self.same(functional.all_gather_tensor(mine, 0, everyone) + 0, torch.cat(parts), "all_gather")
        self.same(functional.all_gather_tensor(mine, 1, everyone) + 0, torch.cat(parts, 1), "all_gather of columns")
        for one in functional.all_gather_into_tensor_coalesced([mine, mine], everyone):
            self.same(one + 0, torch.cat(parts), "all_gather_into_tensor_coalesced")
        self.same(functional.broadcast(mine, 2, everyone) + 0, parts[2], "broadcast")
        splits = [1, 2, 2, 3]
        received = [splits[self.rank]] * WORLD
        found = functional.all_to_all_single(mine, received, splits, everyone) + 0
        self.same(found, torch.cat([part.split(splits)[self.rank] for part in parts]), "all_to_all_single")

    def test_coalescing_manager(self) -> None:
        tensors = [torch.full((n,), float(self.rank)) for n in (1, 100, 3)]
        with dist._coalescing_manager(async_ops=True) as coalesced:
            for one in tensors:
                dist.all_reduce(one)
        coalesced.wait()
        for one in tensors:
            self.same(one, torch.full(one.shape, 6.0), len(one))

    def test_coalesced_gathers(self) -> None:
        inputs = [torch.full((n,), float(self.rank)) for n in (1, 100, 3)]
        outputs = [torch.empty(len(one) * WORLD) for one in inputs]
        with dist._coalescing_manager():
            for output, one in zip(outputs, inputs):
                dist.all_gather_into_tensor(output, one)
        for output, one in zip(outputs, inputs):
            self.same(output, torch.arange(float(WORLD)).repeat_interleave(len(one)), len(one))
        totals = [torch.empty(len(one)) for one in inputs]
        with dist._coalescing_manager():
            for total, output in zip(totals, outputs):
                dist.reduce_scatter_tensor(total, output)
        for total in totals:
            self.same(total, torch.full(total.shape, float(WORLD * self.rank)), len(total))


class Works(Ranks):
    def test_future_has_the_result(self) -> None:
        mine = torch.full((4,), float(self.rank))
        work = dist.all_reduce(mine, async_op=True)
        value = work.get_future().then(lambda future: future.value()).wait()
        found = value[0] if isinstance(value, list) else value
        self.same(found, torch.full((4,), 6.0), "future")
        self.assertTrue(work.is_completed())
        self.assertTrue(work.is_success())

    def test_a_call_is_complete_after_its_wait(self) -> None:
        one, four = torch.ones(4), [torch.ones(4) for _ in range(WORLD)]
        calls = [
            dist.all_reduce(one.clone(), async_op=True),
            dist.broadcast(one.clone(), 0, async_op=True),
            dist.reduce(one.clone(), 0, async_op=True),
            dist.all_gather(four, one, async_op=True),
            dist.all_to_all_single(torch.empty(4), one, async_op=True),
            dist.gather(one, four if self.rank == 0 else None, async_op=True),
            dist.scatter(one.clone(), four if self.rank == 0 else None, async_op=True),
            dist.barrier(async_op=True),
        ]
        for place, work in enumerate(calls):
            work.wait()
            self.assertTrue(work.is_completed(), msg=f"call {place}")

    def test_a_wait_has_a_timeout(self) -> None:
        """A call that not all ranks have begun: the wait ends with an error, and the call itself goes on."""
        self.beyond_gloo("gives up the call with the wait")
        mine = torch.full((4,), float(self.rank))
        if self.rank == 0:
            work = dist.all_reduce(mine, async_op=True)
            with self.assertRaises(RuntimeError):
                work.wait(timedelta(milliseconds=50))
            self.assertFalse(work.is_completed())
            dist.monitored_barrier(timeout=timedelta(seconds=20))
            work.wait()
        else:
            dist.monitored_barrier(timeout=timedelta(seconds=20))
            dist.all_reduce(mine)
        self.same(mine, torch.full((4,), 6.0), "after the wait")

    def test_profile_names_the_calls(self) -> None:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            dist.all_reduce(torch.ones(4))
            dist.broadcast(torch.ones(4), 0)
            dist.all_reduce(torch.ones(4), async_op=True).wait()
        names = {event.name for event in profile.events()}
        for call in ("all_reduce", "broadcast"):
            self.assertIn(f"{self.backend}:{call}", names)

    def test_sequence_numbers_agree(self) -> None:
        group = dist.distributed_c10d._get_default_group()
        numbers = [None] * WORLD
        dist.all_gather_object(numbers, group._get_sequence_number_for_group())
        self.assertEqual(len(set(numbers)), 1)
