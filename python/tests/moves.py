"""Collectives that only move data, for every type, shape and layout; uneven ones too."""

import torch
import torch.distributed as dist

from ranks import SHAPES, WORLD, Ranks, every, layouts, manners, tensor


class Moves(Ranks):
    def test_broadcast(self) -> None:
        for dtype, shape in every(self.types, SHAPES):
            for root, call in every(range(WORLD), manners()):
                mine = tensor(self.rank, shape, dtype, 0, 1)
                call(dist.broadcast, mine, root)
                self.same(mine, tensor(root, shape, dtype, 0, 1), (dtype, shape, root))

    def test_all_gather(self) -> None:
        for dtype, shape in every(self.types, SHAPES):
            expected = [tensor(rank, shape, dtype, 0, 1) for rank in range(WORLD)]
            for (layout, mine), call in every(list(layouts(expected[self.rank], not self.on_gloo)), manners()):
                outputs = [torch.empty_like(one) for one in expected]
                call(dist.all_gather, outputs, mine)
                for rank, (found, one) in enumerate(zip(outputs, expected)):
                    self.same(found, one, (dtype, shape, layout, rank))

    def test_all_gather_into_views(self) -> None:
        self.beyond_gloo("wants whole outputs")
        table = torch.zeros(5, WORLD)
        dist.all_gather([table[:, rank] for rank in range(WORLD)], torch.full((5,), float(self.rank)))
        self.same(table, torch.arange(float(WORLD)).expand(5, WORLD), "columns")

    def test_all_gather_into_tensor(self) -> None:
        for dtype, shape in every(self.types, [(1,), (7,), (0,), (3, 5), (1025,)]):
            inputs = [tensor(rank, shape, dtype, 0, 1) for rank in range(WORLD)]
            for expected, call in every([torch.cat(inputs), *([] if self.on_gloo else [torch.stack(inputs)])], manners()):
                output = torch.empty_like(expected)
                call(dist.all_gather_into_tensor, output, inputs[self.rank].clone())
                self.same(output, expected, (dtype, shape))

    def test_all_gather_uneven(self) -> None:
        """Each rank's tensor has a length of its own."""
        self.beyond_gloo("gathers equal shapes only")
        for call in manners():
            outputs = [torch.empty(3 * rank + 1) for rank in range(WORLD)]
            call(dist.all_gather, outputs, tensor(self.rank, (3 * self.rank + 1,), torch.float32))
            for rank, found in enumerate(outputs):
                self.same(found, tensor(rank, (3 * rank + 1,), torch.float32), rank)

    def test_all_gather_coalesced(self) -> None:
        shapes = [(5,), (3, 4), (1,)]
        outputs = [[torch.empty(shape) for shape in shapes] for _ in range(WORLD)]
        dist.all_gather_coalesced(outputs, [tensor(self.rank, shape, torch.float32) for shape in shapes])
        for rank, of in enumerate(outputs):
            for found, shape in zip(of, shapes):
                self.same(found, tensor(rank, shape, torch.float32), (rank, shape))

    def test_gather(self) -> None:
        for dtype, shape in every(self.types, [(), (0,), (7,), (3, 5), (1025,)]):
            for root, call in every(range(WORLD), manners()):
                outputs = [torch.empty(shape, dtype=dtype) for _ in range(WORLD)] if self.rank == root else None
                call(dist.gather, tensor(self.rank, shape, dtype, 0, 1), outputs, root)
                for rank, found in enumerate(outputs or []):
                    self.same(found, tensor(rank, shape, dtype, 0, 1), (dtype, shape, root, rank))

    def test_scatter(self) -> None:
        for dtype, shape in every(self.types, [(), (0,), (7,), (3, 5), (1025,)]):
            for root, call in every(range(WORLD), manners()):
                inputs = [tensor(rank, shape, dtype, 0, 1) for rank in range(WORLD)] if self.rank == root else None
                output = torch.empty(shape, dtype=dtype)
                call(dist.scatter, output, inputs, root)
                self.same(output, tensor(self.rank, shape, dtype, 0, 1), (dtype, shape, root))

    def test_all_to_all_single(self) -> None:
        for dtype, shape in every(self.types, [(WORLD,), (0,), (WORLD * 3, 5), (WORLD * 1025,)]):
            inputs = [tensor(rank, shape, dtype, 0, 1) for rank in range(WORLD)]
            expected = torch.cat([of.chunk(WORLD)[self.rank] for of in inputs]) if shape[0] else inputs[0]
            for (layout, mine), call in every(list(layouts(inputs[self.rank], not self.on_gloo)), manners()):
                output = torch.empty_like(expected)
                call(dist.all_to_all_single, output, mine)
                self.same(output, expected, (dtype, shape, layout))

    def test_all_to_all_single_uneven(self) -> None:
        """Rank s sends 2 s + d rows to rank d, and nothing to itself; one pair has nothing at all."""
        rows = [[0 if s == d or (s, d) == (0, 1) else 2 * s + d for d in range(WORLD)] for s in range(WORLD)]
        for dtype, call in every(self.types, manners()):
            inputs = [tensor(s, (sum(rows[s]), 3), dtype, 0, 1) for s in range(WORLD)]
            received = [of[self.rank] for of in rows]
            output = torch.empty((sum(received), 3), dtype=dtype)
            call(dist.all_to_all_single, output, inputs[self.rank].clone(), received, rows[self.rank])
            self.same(output, torch.cat([inputs[s].split(rows[s])[self.rank] for s in range(WORLD)]), dtype)

    def test_all_to_all(self) -> None:
        """Lists; each pair has a shape of its own where the backend can."""
        for dtype, call in every(self.types, manners()):
            shape = (lambda s, d: (3, 2)) if self.on_gloo else (lambda s, d: (s + 1, 2 * d))
            blocks = [[tensor(s * WORLD + d, shape(s, d), dtype, 0, 1) for d in range(WORLD)] for s in range(WORLD)]
            outputs = [torch.empty_like(blocks[s][self.rank]) for s in range(WORLD)]
            call(dist.all_to_all, outputs, [one.clone() for one in blocks[self.rank]])
            for source, found in enumerate(outputs):
                self.same(found, blocks[source][self.rank], (dtype, source))

    def test_barrier(self) -> None:
        for call in manners():
            call(dist.barrier)

    def test_tensors_without_memory_are_refused(self) -> None:
        group = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
        with self.assertRaises((RuntimeError, ValueError)):
            group.allreduce([torch.ones(3, device="meta")]).wait()
        dist.barrier()


class Objects(Ranks):
    THINGS = ["a", {"b": [1, 2]}, None, list(range(10000))]

    def test_all_gather_object(self) -> None:
        found = [None] * WORLD
        dist.all_gather_object(found, self.THINGS[self.rank])
        self.assertEqual(found, self.THINGS)

    def test_gather_object(self) -> None:
        found = [None] * WORLD if self.rank == 2 else None
        dist.gather_object(self.THINGS[self.rank], found, 2)
        self.assertEqual(found, self.THINGS if self.rank == 2 else None)

    def test_scatter_object_list(self) -> None:
        found = [None]
        dist.scatter_object_list(found, self.THINGS if self.rank == 1 else None, 1)
        self.assertEqual(found, [self.THINGS[self.rank]])

    def test_broadcast_object_list(self) -> None:
        found = list(self.THINGS) if self.rank == 3 else [None] * WORLD
        dist.broadcast_object_list(found, 3)
        self.assertEqual(found, self.THINGS)

    def test_send_object_list(self) -> None:
        if self.rank == 0:
            for peer in self.others:
                dist.send_object_list(self.THINGS, peer)
        else:
            found = [None] * len(self.THINGS)
            dist.recv_object_list(found, 0)
            self.assertEqual(found, self.THINGS)
