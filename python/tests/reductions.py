"""Collectives that reduce, for every type, operator, shape and layout."""

import torch
import torch.distributed as dist

from ranks import COMPLEX, FLOATS, FLOATS8, SHAPES, SIGNED, UNSIGNED, WORLD, Ranks, every, layouts, manners, plain, tensor

Op = dist.ReduceOp
INTEGERS = [*SIGNED, *UNSIGNED]
NUMBERS = [*FLOATS, *FLOATS8, *INTEGERS]


def allowed(op: Op, dtype: torch.dtype) -> bool:
    """Which operators are defined for a type."""
    if op in (Op.BAND, Op.BOR, Op.BXOR):
        return dtype in INTEGERS or dtype == torch.bool
    if dtype in COMPLEX:
        return op in (Op.SUM, Op.AVG)
    if dtype == torch.bool:
        return op != Op.AVG
    return True


def contributions(op: Op, shape: tuple[int, ...], dtype: torch.dtype) -> list[torch.Tensor]:
    """One tensor of each rank, such that no operator leaves the type's exact whole numbers."""
    low, high = (1, 2) if op == Op.PRODUCT else (0, 1 if dtype == torch.bool else 2)
    return [tensor(rank, shape, dtype, low, high) for rank in range(WORLD)]


def reduced(op: Op, inputs: list[torch.Tensor]) -> torch.Tensor:
    """The reference."""
    dtype, stacked = inputs[0].dtype, torch.stack([plain(one) for one in inputs])
    if dtype == torch.bool and op in (Op.SUM, Op.PRODUCT):
        op = Op.MAX if op == Op.SUM else Op.MIN
    if op in (Op.SUM, Op.AVG):
        result = stacked.sum(0)
        if op == Op.AVG:
            whole = not (dtype.is_floating_point or dtype.is_complex)
            result = torch.div(result, len(inputs), rounding_mode="trunc") if whole else result / len(inputs)
    elif op == Op.PRODUCT:
        result = stacked.prod(0)
    elif op in (Op.MIN, Op.MAX):
        result = stacked.amin(0) if op == Op.MIN else stacked.amax(0)
    else:
        combine = {Op.BAND: torch.bitwise_and, Op.BOR: torch.bitwise_or, Op.BXOR: torch.bitwise_xor}[op]
        result = stacked[0]
        for one in stacked[1:]:
            result = combine(result, one)
    return result.to(dtype)


class Reductions(Ranks):
    def operators(self, dtype: torch.dtype) -> list[Op]:
        ops = [Op.SUM, Op.PRODUCT, Op.MIN, Op.MAX, Op.AVG, Op.BAND, Op.BOR, Op.BXOR]
        return [op for op in ops if allowed(op, dtype) and not (self.on_gloo and op == Op.AVG)]

    def test_all_reduce(self) -> None:
        for dtype, shape in every(self.types, SHAPES):
            for op, call in every(self.operators(dtype), manners()):
                inputs = contributions(op, shape, dtype)
                mine = inputs[self.rank].clone()
                call(dist.all_reduce, mine, op)
                self.same(mine, reduced(op, inputs), (dtype, op, shape, call.__name__))

    def test_all_reduce_layouts(self) -> None:
        for dtype, shape in every([torch.float32, torch.bfloat16, torch.bool, torch.complex64], SHAPES[1:]):
            inputs = contributions(Op.SUM, shape, dtype)
            for (layout, mine), call in every(list(layouts(inputs[self.rank], not self.on_gloo)), manners()):
                mine = mine.clone() if layout == "contiguous" else mine
                mine.copy_(inputs[self.rank])
                stride = mine.stride()
                call(dist.all_reduce, mine)
                self.same(mine, reduced(Op.SUM, inputs), (dtype, shape, layout, call.__name__))
                self.assertEqual(mine.stride(), stride)

    def test_all_reduce_leaves_the_gaps(self) -> None:
        self.beyond_gloo("takes the gaps along")
        base = torch.full((6, 8), -1.0)
        view = base[1:5:2, ::3]
        view.fill_(float(self.rank))
        dist.all_reduce(view)
        self.same(view, torch.full((2, 3), 6.0), "view")
        self.assertEqual(int((base == -1).sum()), 48 - 6)

    def test_all_reduce_of_16_mib(self) -> None:
        inputs = contributions(Op.SUM, (1 << 22,), torch.float32)
        for call in manners():
            mine = inputs[self.rank].clone()
            call(dist.all_reduce, mine)
            self.same(mine, reduced(Op.SUM, inputs), call.__name__)

    def test_reduce(self) -> None:
        for dtype, root in every(self.types, range(WORLD)):
            for op, call in every(self.operators(dtype), manners()):
                inputs = contributions(op, (37,), dtype)
                mine = inputs[self.rank].clone()
                call(dist.reduce, mine, root, op)
                if self.rank == root:
                    self.same(mine, reduced(op, inputs), (dtype, op, root))

    def test_reduce_scatter(self) -> None:
        for dtype, shape in every(self.types, SHAPES):
            for op, call in every(self.operators(dtype), manners()):
                blocks = [[tensor(r * WORLD + b, shape, dtype, 1, 1 if dtype == torch.bool else 2) for b in range(WORLD)] for r in range(WORLD)]
                output = torch.empty_like(blocks[0][0])
                call(dist.reduce_scatter, output, blocks[self.rank], op)
                self.same(output, reduced(op, [of[self.rank] for of in blocks]), (dtype, op, shape))

    def test_reduce_scatter_tensor(self) -> None:
        for dtype, shape in every(self.types, [(1,), (7,), (0,), (3, 5), (1025,)]):
            whole = (shape[0] * WORLD, *shape[1:])
            for op, call in every(self.operators(dtype), manners()):
                inputs = contributions(op, whole, dtype)
                output = torch.empty(shape, dtype=dtype)
                call(dist.reduce_scatter_tensor, output, inputs[self.rank].clone(), op)
                self.same(output, reduced(op, inputs).chunk(WORLD)[self.rank] if output.numel() else output, (dtype, op, shape))

    def test_reduce_scatter_tensor_stacked(self) -> None:
        """The input may have an axis of ranks in front."""
        inputs = contributions(Op.SUM, (WORLD, 3, 5), torch.float32)
        output = torch.empty(3, 5)
        dist.reduce_scatter_tensor(output, inputs[self.rank].clone())
        self.same(output, reduced(Op.SUM, inputs)[self.rank], "stacked")

    def test_premul_sum(self) -> None:
        self.beyond_gloo("has no PREMUL_SUM")
        for dtype, call in every(FLOATS, manners()):
            for factor in (0.5, torch.tensor([2.0], dtype=dtype)):
                op = dist._make_nccl_premul_sum(factor)
                inputs = contributions(Op.SUM, (33,), dtype)
                mine = inputs[self.rank].clone()
                call(dist.all_reduce, mine, op)
                expected = (sum(plain(one) for one in inputs) * float(factor)).to(dtype)
                self.same(mine, expected, (dtype, factor, call.__name__))
                output = torch.empty(33, dtype=dtype)
                call(dist.reduce_scatter, output, [inputs[self.rank].clone() for _ in range(WORLD)], op)
                self.same(output, expected, (dtype, factor, "reduce_scatter"))

    def test_all_reduce_coalesced(self) -> None:
        for dtype in [torch.float32, torch.int64, torch.float16]:
            inputs = [contributions(Op.SUM, shape, dtype) for shape in [(5,), (3, 4), (1,), (257,)]]
            mine = [of[self.rank].clone() for of in inputs]
            dist.all_reduce_coalesced(mine)
            for found, of in zip(mine, inputs):
                self.same(found, reduced(Op.SUM, of), dtype)

    def test_operators_without_a_meaning_are_refused(self) -> None:
        """On every rank, and the group goes on."""
        for dtype, op in every([torch.float32, torch.complex64], [Op.MAX, Op.PRODUCT, Op.BAND, Op.BXOR]):
            if not allowed(op, dtype):
                with self.assertRaises((RuntimeError, ValueError), msg=f"{dtype} {op}"):
                    dist.all_reduce(torch.ones(4, dtype=dtype), op)
        mine = torch.ones(3)
        dist.all_reduce(mine)
        self.same(mine, torch.full((3,), float(WORLD)), "after refusals")

    def test_sparse(self) -> None:
        """Each rank has entries of its own, some of them in common, and as many as its rank says."""
        dense = [torch.zeros(6, 3) for _ in range(WORLD)]
        for rank, one in enumerate(dense):
            one[: rank + 1] = rank + 1.0
        for call in manners():
            mine = dense[self.rank].to_sparse(1)
            call(dist.all_reduce, mine)
            self.same(mine.to_dense(), sum(dense), call.__name__)

    def test_many_at_once(self) -> None:
        """Asynchronous calls and blocking ones, mixed, keep their order."""
        tensors = [torch.full((n,), float(self.rank)) for n in range(1, 200)]
        works = []
        for index, one in enumerate(tensors):
            if index % 7 == 3:
                dist.all_reduce(one)
            else:
                works.append(dist.all_reduce(one, async_op=True))
        for work in reversed(works):
            work.wait()
        for one in tensors:
            self.same(one, torch.full(one.shape, 6.0), len(one))
