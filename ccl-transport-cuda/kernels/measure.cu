// What calls are measured against: waiting alone, and sums of floats that know nothing of ranks.
#include "team.h"

// All ranks meet `count` times.
METHOD void meet(const Launch &launch, Trouble &trouble) {
    const Call call = call_of(launch);
    Member member;
    member.begin(launch, call, trouble);
    for (u64 i = 0; i < call.count; ++i) {
        if (i > 0) member.epoch = epoch_after(member.epoch);
        if (!member.meet(ENTRY)) break;
    }
    member.end();
}

// A flag goes from rank 0 to rank 1 and back `count` times.
METHOD void ping(const Launch &launch, Trouble &trouble) {
    const Call call = call_of(launch);
    Member member;
    member.begin(launch, call, trouble);
    const bool plays = thread() == 0 && member.block_index == 0 && member.ranks > 1 && member.rank < 2;
    for (u64 i = 0; i < call.count; ++i) {
        if (i > 0) member.epoch = epoch_after(member.epoch);
        if (!plays) continue;
        const u32 peer = 1 - member.rank;
        Flag *there = member.team->flags[peer] + member.place(EXIT, member.rank);
        const Flag *here = member.team->flags[member.rank] + member.place(EXIT, peer);
        const u64 mark = (u64)member.epoch | member.tag << 32;
        u64 found;
        if (member.rank == 0) release(there, mark);
        if (!member.watch.await_mark(here, member.epoch, peer, found)) break;
        if (member.rank == 1) release(there, mark);
    }
    member.end();
}

// Loads of an operand that a thread has on their way at a time.
#define AHEAD 4

// Adds a rank's send buffer to its receive buffer, whole vectors of floats, as a program would without any of this.
METHOD void plain_add(const Launch &launch) {
    const Call call = call_of(launch);
    const Vec *input = (const Vec *)call.input;
    Vec *output = (Vec *)call.output;
    const u64 vectors = call.count / 4, step = (u64)launch.blocks * threads();
    u64 at = (u64)(block() % launch.blocks) * threads() + thread();
#pragma unroll 1
    for (; at + (AHEAD - 1) * step < vectors; at += AHEAD * step) {
        Vec sum[AHEAD], more[AHEAD];
#pragma unroll
        for (u32 i = 0; i < AHEAD; ++i) sum[i] = load(output + at + i * step);
#pragma unroll
        for (u32 i = 0; i < AHEAD; ++i) more[i] = load(input + at + i * step);
#pragma unroll
        for (u32 i = 0; i < AHEAD; ++i) {
            for (u32 w = 0; w < 4; ++w) sum[i].word[w] = bits(add(single(sum[i].word[w]), single(more[i].word[w])));
            store(output + at + i * step, sum[i]);
        }
    }
#pragma unroll 1
    for (; at < vectors; at += step) {
        Vec sum = load(output + at);
        const Vec more = load(input + at);
        for (u32 w = 0; w < 4; ++w) sum.word[w] = bits(add(single(sum.word[w]), single(more.word[w])));
        store(output + at, sum);
    }
}

#if defined(FAMILY)
KERNEL(rdmaccl_meet, (const Launch launch)) {
    SHARED(Trouble, trouble);
    meet(launch, trouble);
}
KERNEL(rdmaccl_ping, (const Launch launch)) {
    SHARED(Trouble, trouble);
    ping(launch, trouble);
}
KERNEL(rdmaccl_add, (const Launch launch)) { plain_add(launch); }
#endif
