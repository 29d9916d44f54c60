// What waiting costs: kernels that move no data.
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

#if defined(FAMILY)
KERNEL(rdmaccl_meet, (const Launch launch)) {
    SHARED(Trouble, trouble);
    meet(launch, trouble);
}
KERNEL(rdmaccl_ping, (const Launch launch)) {
    SHARED(Trouble, trouble);
    ping(launch, trouble);
}
#endif
