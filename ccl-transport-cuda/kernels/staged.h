// Two-shot through staging memory: for buffers that no peer reaches.
#pragma once
#include "all_reduce.h"

// From operand i of `pairs` to operand `pairs` + i, each as long as the first one's `len` says: a thread loads from several before it
// stores, so that short copies do not wait for memory one after the other.
FUNCTION void copy_pairs(const Operands &operands, u32 pairs) {
    u64 places = 0;
    u32 longest = 0;
#pragma unroll 1
    for (u32 i = 0; i < pairs; ++i) {
        places |= (u64)operands.at[i] | (u64)operands.at[pairs + i];
        if (operands.len[i] > longest) longest = operands.len[i];
    }
    const bool is_aligned = places % sizeof(Vec) == 0;
    const u32 vectors = is_aligned ? longest / sizeof(Vec) : 0, group = 8;
#pragma unroll 1
    for (u32 mine = thread(); mine < vectors; mine += threads()) {
#pragma unroll 1
        for (u32 first = 0; first < pairs; first += group) {
            Vec v[group];
#pragma unroll
            for (u32 i = 0; i < group; ++i) {
                if (first + i < pairs && mine < operands.len[first + i] / sizeof(Vec)) v[i] = load((const Vec *)operands.at[first + i] + mine);
            }
#pragma unroll
            for (u32 i = 0; i < group; ++i) {
                if (first + i < pairs && mine < operands.len[first + i] / sizeof(Vec)) store((Vec *)operands.at[pairs + first + i] + mine, v[i]);
            }
        }
    }
#pragma unroll 1
    for (u32 i = 0; i < pairs; ++i) {
        const u32 len = operands.len[i];
#pragma unroll 1
        for (u32 at = (is_aligned ? len / sizeof(Vec) * sizeof(Vec) : 0) + thread(); at < len; at += threads()) {
            operands.at[pairs + i][at] = operands.at[i][at];
        }
    }
}

// Bytes of a rank's part of the staging memory that inputs have, and results as many.
METHOD u64 half_of(const Team &team) { return team.room / 2 / 64 * 64; }

// What is left of a call, as far as there is room for it.
METHOD Run round_of(const TeamShared &shared, const Team &team) {
    const u64 left = shared.bytes - shared.done, most = half_of(team) * team.ranks;
    const Run run = {shared.done, left < most ? left : most};
    return run;
}

// A block's share of the first `len` bytes of a part. In all rounds it is of the same lines, whatever is left for the last one: what another block
// of a peer still reads is not written.
METHOD Run share_of(const TeamShared &shared, const Team &team, u64 len, u32 index, u32 blocks) {
    const u64 most = half_of(team) * team.ranks, longest = part(shared.bytes < most ? shared.bytes : most, 0, team.ranks).len;
    const Run all = part(longest, index, blocks);
    const u64 from = all.at < len ? all.at : len, to = all.at + all.len < len ? all.at + all.len : len;
    const Run run = {from, to - from};
    return run;
}

METHOD u32 pairs_of(u32 step, u32 ranks) { return step == 1 ? ranks : ranks - 1; }

// The operands of a step, which is with all peers: first from the input to them, at last from them to the output. In between the inputs of this
// rank's part are combined in the order of ranks.
FUNCTION void place_step(TeamShared &shared, const Team &team, u32 epoch, u32 index, u32 blocks, u32 step) {
    const Run round = round_of(shared, team);
    const u64 half = half_of(team);
    const u32 rank = team.rank, ranks = team.ranks, pairs = pairs_of(step, ranks);
#pragma unroll 1
    for (u32 i = thread(); i < pairs; i += threads()) {
        const u32 next = rank + 1 + i, other = next < ranks ? next : next - ranks;
        const u32 peer = step == 1 ? i : other;
        const Run whole = part(round.len, step == 1 ? rank : peer, ranks);
        const Run run = share_of(shared, team, whole.len, index, blocks);
        const u64 place = round.at + whole.at + run.at;
        const u8 *from = shared.input + place;
        u8 *into = shared.output + place;
        if (step == 0) {
            into = stage_of(team, epoch, peer, rank) + run.at;
        } else if (step == 2) {
            from = stage_of(team, epoch, rank, peer) + half + run.at;
        } else if (peer != rank) {
            from = stage_of(team, epoch, rank, peer) + run.at;
            into = stage_of(team, epoch, peer, rank) + half + run.at;
        }
        set(shared.operands, i, from);
        set(shared.operands, pairs + i, into);
        shared.operands.len[i] = (u32)run.len;
    }
}

// Every rank gives every other one that one's part of its input, combines all that it was given with its own, and gives the result to all.
// A part of the staging memory has inputs in its first half and results in its second. What does not fit goes in rounds, each of which is an
// epoch: blocks of one rank need not be in the same, and each has lines of its own.
template <class F> METHOD void staged(const Launch &launch, TeamShared &shared) {
    const Call call = call_of(launch);
    if (!is_wanted(call)) return;
    Member member;
    if (thread() == 0) {
        shared.rule = call.rule;
        shared.input = call.input;
        shared.output = call.output;
        shared.done = 0;
        shared.bytes = call.count * sizeof(typename F::Element);
    }
    member.begin(launch, call, shared.trouble);
#pragma unroll 1
    for (u32 step = 0;;) {
        place_step(shared, *member.team, member.epoch, member.block_index, member.blocks, step);
        const u32 pairs = pairs_of(step, member.ranks);
        barrier();
        if (step == 1) {
            combine<F>(shared.operands, pairs, pairs, shared.operands.len[0], shared.rule);
        } else {
            copy_pairs(shared.operands, pairs);
        }
        if (step < 2) {
            if (!member.meet(step == 0 ? ENTRY : EXIT)) break;
            step += 1;
            continue;
        }
        barrier();
        const Run round = round_of(shared, *member.team);
        if (round.at + round.len == shared.bytes) break;
        barrier();
        if (thread() == 0) shared.done += round.len;
        barrier();
        member.epoch = epoch_after(member.epoch);
        step = 0;
    }
    member.end();
}
