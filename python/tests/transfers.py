"""send and recv: every type, any order, tags, any source, both ways at once, batches."""

import time

import torch
import torch.distributed as dist

from ranks import SHAPES, WORLD, Ranks, every, layouts, tensor


class Transfers(Ranks):
    @property
    def right(self) -> int:
        return (self.rank + 1) % WORLD

    @property
    def left(self) -> int:
        return (self.rank - 1) % WORLD

    def test_blocking(self) -> None:
        for dtype, shape in every(self.types, SHAPES):
            found = torch.empty(shape, dtype=dtype)
            if self.rank % 2 == 0:
                dist.send(tensor(self.rank, shape, dtype, 0, 1), self.rank + 1)
            else:
                self.assertEqual(dist.recv(found, self.rank - 1), self.rank - 1)
                self.same(found, tensor(self.rank - 1, shape, dtype, 0, 1), (dtype, shape))

    def test_layouts(self) -> None:
        self.beyond_gloo("sends whole tensors only")
        source = tensor(0, (6, 4), torch.float32)
        for layout, mine in layouts(source, gaps=True):
            found = torch.zeros(4, 6).t()
            send = dist.isend(mine, self.right)
            dist.recv(found, self.left)
            send.wait()
            self.same(found, source, layout)

    def test_ring_of_large_ones(self) -> None:
        """Every rank sends first: nothing may wait for the receiver's buffer."""
        sent = torch.full((1 << 20,), float(self.rank))
        found = torch.empty_like(sent)
        send = dist.isend(sent, self.right)
        receive = dist.irecv(found, self.left)
        for work in (send, receive):
            work.wait()
            self.assertTrue(work.is_completed())
        self.same(found, torch.full_like(sent, float(self.left)), "ring")

    def test_all_pairs_in_any_order(self) -> None:
        """Each rank posts its receives and sends in an order of its own, and waits in another."""
        found = {peer: torch.empty(100 + peer) for peer in self.others}
        works = []
        for peer in sorted(self.others, key=lambda p: (p * 3 + self.rank * 5) % 7):
            post = [
                lambda p=peer: dist.irecv(found[p], p),
                lambda p=peer: dist.isend(torch.full((100 + self.rank,), float(self.rank)), p),
            ]
            works += [one() for one in (post if (peer + self.rank) % 2 else reversed(post))]
        for work in reversed(works):
            work.wait()
        for peer, one in found.items():
            self.same(one, torch.full((100 + peer,), float(peer)), peer)

    def test_tags_arrive_in_another_order(self) -> None:
        tags = [5, 1, 9, 0, 7]
        works = [dist.isend(torch.full((3,), float(tag)), self.right, tag=tag) for tag in tags]
        for tag in sorted(tags):
            found = torch.empty(3)
            dist.recv(found, self.left, tag=tag)
            self.same(found, torch.full((3,), float(tag)), tag)
        for work in works:
            work.wait()

    def test_equal_tags_keep_their_order(self) -> None:
        works = [dist.isend(torch.tensor([float(i)]), self.right, tag=4) for i in range(50)]
        for index in range(50):
            found = torch.empty(1)
            dist.recv(found, self.left, tag=4)
            self.same(found, torch.tensor([float(index)]), index)
        for work in works:
            work.wait()

    def test_any_source(self) -> None:
        if self.rank == 0:
            senders = set()
            for _ in self.others:
                found = torch.empty(10)
                sender = dist.recv(found)
                self.same(found, torch.full((10,), float(sender)), sender)
                senders.add(sender)
            self.assertEqual(senders, set(self.others))
        else:
            dist.send(torch.full((10,), float(self.rank)), 0)
        dist.barrier()

    def test_any_source_with_a_tag(self) -> None:
        if self.rank == 1:
            found = torch.empty(1)
            self.assertEqual(dist.recv(found, tag=3), 3)
            self.same(found, torch.tensor([33.0]), "tag 3")
            self.assertEqual(dist.recv(found, tag=2), 2)
            self.same(found, torch.tensor([22.0]), "tag 2")
        elif self.rank >= 2:
            dist.send(torch.tensor([11.0 * self.rank]), 1, tag=self.rank)
        dist.barrier()

    def test_beside_collectives(self) -> None:
        """A transfer that nobody has met yet does not hold up collectives."""
        found = torch.empty(5)
        receive = dist.irecv(found, self.left, tag=8)
        total = torch.ones(5)
        dist.all_reduce(total)
        self.same(total, torch.full((5,), float(WORLD)), "collective")
        dist.send(torch.full((5,), float(self.rank)), self.right, tag=8)
        receive.wait()
        self.same(found, torch.full((5,), float(self.left)), "transfer")

    def test_more_short_ones_than_are_left_unanswered(self) -> None:
        """Forty each way at once, waited for from both ends: a sender must not need what it has not taken yet."""
        found = [torch.empty(10) for _ in range(40)]
        sends = [dist.isend(torch.full((10,), 100.0 * self.rank + at), self.right) for at in range(40)]
        receives = [dist.irecv(one, self.left) for one in found]
        for work in (*sends[::-1], *receives[::2], *receives[1::2]):
            work.wait()
        for at, one in enumerate(found):
            self.same(one, torch.full((10,), 100.0 * self.left + at), at)

    def test_send_that_nobody_waits_for(self) -> None:
        """It leaves although its sender only waits for word from the receiver, which comes another way."""
        store = dist.distributed_c10d._get_default_store()
        for turn in range(3):
            if self.rank % 2 == 0:
                send = dist.isend(torch.full((7,), float(turn)), self.rank + 1)
                store.wait([f"taken {turn} {self.rank + 1}"])
                send.wait()
            else:
                found = torch.empty(7)
                dist.recv(found, self.rank - 1)
                self.same(found, torch.full((7,), float(turn)), turn)
                store.set(f"taken {turn} {self.rank}", "")

    def test_receive_that_is_only_looked_at(self) -> None:
        for turn in range(3):
            found = torch.empty(7)
            receive = dist.irecv(found, self.left)
            send = dist.isend(torch.full((7,), float(self.rank + turn)), self.right)
            end = time.monotonic() + 20
            while not (receive.is_completed() and send.is_completed()):
                self.assertLess(time.monotonic(), end, "it never ends")
                time.sleep(0.001)
            self.same(found, torch.full((7,), float(self.left + turn)), turn)

    def test_batch(self) -> None:
        found = {peer: torch.empty(peer + 1) for peer in self.others}
        operations = [dist.P2POp(dist.irecv, found[peer], peer) for peer in self.others]
        operations += [dist.P2POp(dist.isend, torch.full((self.rank + 1,), float(self.rank)), peer) for peer in self.others]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        for peer, one in found.items():
            self.same(one, torch.full((peer + 1,), float(peer)), peer)

    def batch(self, *operations: dist.P2POp) -> None:
        for work in dist.batch_isend_irecv(list(operations)):
            work.wait()
            self.assertTrue(work.is_completed())

    def test_batches_around_the_ring(self) -> None:
        """Long ones, of which each rank can send none before another takes it; now and then a rank comes late."""
        for turn, elements in enumerate((1 << 20, 100, 20_000, 1 << 18) * 3):
            if turn % 4 == self.rank:
                time.sleep(0.02)
            sent, found = torch.full((elements,), float(10 * turn + self.rank)), torch.empty(elements)
            self.batch(dist.P2POp(dist.isend, sent, self.right), dist.P2POp(dist.irecv, found, self.left))
            self.same(found, torch.full_like(found, float(10 * turn + self.left)), turn)

    def test_batch_of_many_to_everybody(self) -> None:
        """Long and short ones with tags, which are received in the other order."""
        lengths = [1 << 16, 10, 1 << 17, 1 << 18, 3]
        tags = list(range(len(lengths)))
        found = {(peer, tag): torch.empty(lengths[tag]) for peer in self.others for tag in tags}

        def sent(source: int, peer: int, tag: int) -> torch.Tensor:
            return torch.full((lengths[tag],), float(100 * source + 10 * peer + tag))

        sends = [dist.P2POp(dist.isend, sent(self.rank, peer, tag), peer, tag=tag) for peer in self.others for tag in tags]
        receives = [dist.P2POp(dist.irecv, one, peer, tag=tag) for (peer, tag), one in reversed(found.items())]
        self.batch(*sends, *receives)
        for (peer, tag), one in found.items():
            self.same(one, sent(peer, self.rank, tag), (peer, tag))

    def test_batch_beside_what_nobody_takes_yet(self) -> None:
        """What was sent before a batch, and is taken after it, does not hold it up."""
        before = dist.isend(torch.full((1 << 19,), 1.0), self.right, tag=1)
        other = (self.rank + 2) % WORLD
        sent, found = torch.full((1 << 19,), float(self.rank)), torch.empty(1 << 19)
        self.batch(dist.P2POp(dist.isend, sent, other, tag=2), dist.P2POp(dist.irecv, found, other, tag=2))
        self.same(found, torch.full_like(found, float(other)), "batch")
        dist.recv(found, self.left, tag=1)
        self.same(found, torch.ones_like(found), "before")
        before.wait()

    def test_batches_that_begin_with_what_is_taken_later(self) -> None:
        """Each rank of a pair sends first what the other one's batch has no receive for: both must take it all the same."""
        other = self.rank ^ 1
        first, second = torch.full((1 << 20,), float(self.rank)), torch.full((1 << 20,), 10.0 + self.rank)
        found = torch.empty(1 << 20)
        sends = [dist.P2POp(dist.isend, first, other, tag=1), dist.P2POp(dist.isend, second, other, tag=2)]
        self.batch(*sends, dist.P2POp(dist.irecv, found, other, tag=2))
        self.same(found, torch.full_like(found, 10.0 + other), "second")
        dist.recv(found, other, tag=1)
        self.same(found, torch.full_like(found, float(other)), "first")

    def test_batch_after_one_that_was_refused(self) -> None:
        sent, found = torch.full((1 << 16,), float(self.rank)), torch.empty(1 << 16)
        sending = dist.P2POp(dist.isend, sent, self.right)
        receiving = dist.P2POp(dist.irecv, found, self.left)
        with self.assertRaises(ValueError):
            dist.batch_isend_irecv([receiving, dist.P2POp(dist.isend, sent, self.rank)])
        self.batch(sending)
        dist.barrier()
        self.batch(sending, receiving)
        self.same(found, torch.full_like(found, float(self.left)), "after")

    def test_in_a_subgroup(self) -> None:
        """Ranks of the whole group name the peers."""
        group = dist.new_group([1, 3])
        if self.rank == 1:
            dist.send(torch.tensor([7.0]), 3, group=group)
        elif self.rank == 3:
            found = torch.empty(1)
            dist.recv(found, 1, group=group)
            self.same(found, torch.tensor([7.0]), "subgroup")
        dist.barrier()
