// All-reduces of a team by kernels of their own, with the bits of the host's one-shot and two-shot plans: contributions are combined in
// rank order, and rounded once. Contributions are not scaled here; calls that want it are plans.
#include "staged.h"

// Two-shot, by pushing: every rank combines its part of everybody's input, and stores the result into everybody's output. Each byte
// is read once and written once for each rank; buffers must be mapped by all. The output may be the input: each of its bytes is
// read and written by one thread of one rank.
template <class F> METHOD void two_shot(const Launch &launch, TeamShared &shared) {
    const Call call = call_of(launch);
    if (!is_wanted(call)) return;
    Member member;
    if (thread() == 0) shared.rule = call.rule;
    member.begin(launch, call, shared.trouble);
    const u64 bytes = call.count * sizeof(typename F::Element);
    const Run mine = part(bytes, member.rank, member.ranks);
    // The inputs are there, and the outputs are not in use any more.
    if (member.meet(ENTRY)) {
        const u64 piece = LONGEST;
#pragma unroll 1
        for (u64 done = 0; done < mine.len || done == 0; done += piece) {
            const Run run = part(mine.len - done < piece ? mine.len - done : piece, member.block_index, member.blocks);
#pragma unroll 1
            for (u32 i = thread(); i < 2 * member.ranks; i += threads()) {
                const bool is_input = i < member.ranks;
                const u8 *buffer = is_input ? member.team->input[i] : member.team->output[i - member.ranks];
                set(shared.operands, i, buffer + mine.at + done + run.at);
            }
            barrier();
            combine<F>(shared.operands, member.ranks, member.ranks, (u32)run.len, shared.rule);
            barrier();
        }
        // All have written here, and read from here.
        if (!BUG_NO_EXIT) member.meet(EXIT);
    }
    member.end();
}

// One-shot: every rank gives its input to everybody, and everybody combines all. No rank waits at the end: what it reads is not
// written before its peers know that it has ended.
template <class F> METHOD void one_shot(const Launch &launch, TeamShared &shared) {
    const Call call = call_of(launch);
    Member member;
    if (thread() == 0) {
        shared.rule = call.rule;
        shared.input = call.input;
        shared.output = call.output;
    }
    member.begin(launch, call, shared.trouble);
    const u64 bytes = call.count * sizeof(typename F::Element);
    if (!member.fits(bytes, member.team->room)) return;
    // First this rank's input into everybody's memory, then everybody's inputs into the output.
#pragma unroll 1
    for (u32 step = 0; step < 2; ++step) {
        // A block reads what the same block of each peer has written: its flag speaks of nothing else.
        const u32 index = BUG_OTHER_READER && step == 1 ? (member.block_index + 1) % member.blocks : member.block_index;
        const Run run = part(bytes, index, member.blocks);
#pragma unroll 1
        for (u32 i = thread(); i < member.ranks; i += threads()) {
            const u32 next = member.rank + i, peer = step == 1 ? i : next < member.ranks ? next : next - member.ranks;
            const u8 *at = step == 0 ? member.stage(peer, member.rank) : member.stage(member.rank, peer);
            set(shared.operands, i, (peer == member.rank ? shared.input : at) + run.at);
        }
        if (thread() == 0) set(shared.operands, member.ranks, shared.output + run.at);
        barrier();
        const u32 sources = step == 0 ? 1 : member.ranks;
        combine<F>(shared.operands, sources, step == 0 ? member.ranks - 1 : 1, (u32)run.len, shared.rule);
        if (step == 0 && !member.meet(ENTRY)) break;
    }
    member.end();
}

METHOD void store_word(u8 *at, u32 len, u64 word) {
    if (len == 8 && (u64)at % 8 == 0) {
        *(u64 *)at = word;
        return;
    }
#pragma unroll 1
    for (u32 i = 0; i < len; ++i) at[i] = (u8)(word >> 8 * i);
}
METHOD Vec vector_of(u64 word) {
    const Vec v = {{low(word), high(word), 0, 0}};
    return v;
}

// One-shot, with the flag in the data: each 8 bytes travel as a packet that says for itself of which epoch it is. So nobody waits for
// flags behind data, and no block for its own threads. One packet more from each to each says which call it is.
template <class F> METHOD void packets(const Launch &launch, TeamShared &shared) {
    const Call call = call_of(launch);
    Member member;
    if (thread() == 0) shared.rule = call.rule;
    member.begin(launch, call, shared.trouble);
    const u64 bytes = call.count * sizeof(typename F::Element), words = (bytes + 7) / 8, mark = (u64)member.epoch << 32;
    if (!member.fits(bytes, member.team->packet_room)) return;
    const u32 me = member.block_index * threads() + thread(), all = member.blocks * threads();
    // The first threads have the data, the last ones the tags: of a short call each has one thing to wait for.
    const u32 from_end = all - 1 - me;
#pragma unroll 1
    for (u32 peer = from_end; peer < member.ranks; peer += all) {
        if (peer != member.rank) send(member.packets(peer, member.rank), mark | member.tag, mark | member.tag);
    }
#pragma unroll 1
    for (u64 i = me; i < words; i += all) {
        const u64 word = load_word(call.input + 8 * i, bytes - 8 * i < 8 ? (u32)(bytes - 8 * i) : 8);
#pragma unroll 1
        for (u32 step = 1; step < member.ranks; ++step) {
            const u32 peer = (member.rank + step) % member.ranks;
            send(member.packets(peer, member.rank) + 1 + i, mark | low(word), mark | high(word));
        }
    }
    bool is_whole = true;
#pragma unroll 1
    for (u32 peer = from_end; peer < member.ranks && is_whole; peer += all) {
        if (peer == member.rank) continue;
        u64 one = 0, other;
#pragma unroll 1
        for (u32 turn = 1; is_whole; ++turn) {
            receive(member.packets(member.rank, peer), one, other);
            if (high(one) == member.epoch) break;
            is_whole = member.watch.goes_on(turn, peer, member.epoch, high(one));
        }
        if (is_whole && low(one) != member.tag) member.watch.fail(MISMATCH, peer, member.tag, low(one));
    }
#pragma unroll 1
    for (u64 at = me; at < words && is_whole; at += all) {
        const u32 len = bytes - 8 * at < 8 ? (u32)(bytes - 8 * at) : 8;
        Values<F> values = {};
        // Several at a time: a call is as long as it waits for memory.
        const u32 group = 8;
#pragma unroll 1
        for (u32 first = 0; first < member.ranks && is_whole; first += group) {
            u64 word[group] = {};
#pragma unroll 1
            for (u32 turn = 1; is_whole; ++turn) {
                u32 missing = member.ranks;
#pragma unroll
                for (u32 i = 0; i < group; ++i) {
                    const u32 peer = first + i;
                    if (peer >= member.ranks || peer == member.rank) continue;
                    u64 one, other;
                    receive(member.packets(member.rank, peer) + 1 + at, one, other);
                    if (high(one) != member.epoch || (!BUG_HALF_PACKET && high(other) != member.epoch)) missing = peer;
                    word[i] = (u64)low(one) | (u64)low(other) << 32;
                }
                if (missing == member.ranks) break;
                is_whole = member.watch.goes_on(turn, missing, member.epoch, 0);
            }
#pragma unroll
            for (u32 i = 0; i < group; ++i) {
                const u32 peer = first + i;
                if (peer >= member.ranks) continue;
                if (peer == member.rank) word[i] = load_word(call.input + 8 * at, len);
                values.take(vector_of(word[i]), peer == 0, false, shared.rule);
            }
        }
        const Vec v = values.narrow(shared.rule);
        if (is_whole) store_word(call.output + 8 * at, len, (u64)v.word[0] | (u64)v.word[1] << 32);
    }
    member.end();
}

#if defined(FAMILY)
KERNEL(rdmaccl_two_shot, (const Launch launch)) {
    SHARED(TeamShared, shared);
    two_shot<FAMILY>(launch, shared);
}
KERNEL(rdmaccl_one_shot, (const Launch launch)) {
    SHARED(TeamShared, shared);
    one_shot<FAMILY>(launch, shared);
}
KERNEL(rdmaccl_staged, (const Launch launch)) {
    SHARED(TeamShared, shared);
    staged<FAMILY>(launch, shared);
}
KERNEL(rdmaccl_packets, (const Launch launch)) {
    SHARED(TeamShared, shared);
    packets<FAMILY>(launch, shared);
}
#endif
