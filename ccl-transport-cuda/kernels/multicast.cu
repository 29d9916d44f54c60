// One-shot all-reduces whose ranks reach all others by one store, through an address that stands for a piece of memory of every rank. A source of
// its own, since the store needs devices from sm_90 on and PTX 8.1.
#include "all_reduce.h"

// The vector of a buffer that begins at byte `at`, as far as the buffer goes; behind its end there is anything.
METHOD Vec load_vector(const u8 *from, u32 at, u32 len) {
    const u32 rest = len - at;
    if (rest >= sizeof(Vec) && (u64)(from + at) % sizeof(Vec) == 0) return load((const Vec *)(from + at));
    const u64 first = load_word(from + at, rest < 8 ? rest : 8), second = rest > 8 ? load_word(from + at + 8, rest < 16 ? rest - 8 : 8) : 0;
    const Vec v = {{low(first), high(first), low(second), high(second)}};
    return v;
}

// Stores bytes, wherever they lie, to the memories of all ranks behind `into`, in whole vectors.
METHOD void spread(u8 *into, const u8 *from, u32 len) {
    // Several at a time: what one waits for memory the others do, too.
    const u32 group = 4, round = group * threads() * sizeof(Vec);
    u32 at = thread() * sizeof(Vec);
    if ((u64)from % sizeof(Vec) == 0) {
#pragma unroll 1
        for (; at + (group - 1) * threads() * sizeof(Vec) + sizeof(Vec) <= len; at += round) {
            Vec v[group];
#pragma unroll
            for (u32 i = 0; i < group; ++i) v[i] = load((const Vec *)(from + at) + i * threads());
#pragma unroll
            for (u32 i = 0; i < group; ++i) store_to_all((Vec *)(into + at) + i * threads(), v[i]);
        }
    }
#pragma unroll 1
    for (; at < len; at += threads() * sizeof(Vec)) store_to_all((Vec *)(into + at), load_vector(from, at, len));
    join_addresses();
}

// As `one_shot`, with a stage that all ranks' stores reach at once. This rank's own input is read where it is.
template <class F> METHOD void multicast(const Launch &launch, TeamShared &shared) {
    const Call call = call_of(launch);
    Member member;
    if (thread() == 0) shared.rule = call.rule;
    member.begin(launch, call, shared.trouble);
    const u64 bytes = call.count * sizeof(typename F::Element);
    if (!member.fits(bytes, member.team->room)) return;
    const Run mine = part(bytes, member.block_index, member.blocks);
    spread(member.everywhere() + mine.at, call.input + mine.at, (u32)mine.len);
    if (BUG_NO_ENTRY || member.meet(ENTRY)) {
#pragma unroll 1
        for (u32 i = thread(); i < member.ranks; i += threads()) {
            set(shared.operands, i, (i == member.rank ? call.input : member.received(i)) + mine.at);
        }
        if (thread() == 0) set(shared.operands, member.ranks, call.output + mine.at);
        barrier();
        combine<F>(shared.operands, member.ranks, 1, (u32)mine.len, shared.rule);
    }
    member.end();
}

#if defined(FAMILY)
KERNEL(rdmaccl_multicast, (const Launch launch)) {
    SHARED(TeamShared, shared);
    multicast<FAMILY>(launch, shared);
}
#endif
