// Whether the buffers of a call are registered by all ranks and reached by all: one block of each finds out before the call, and all find the
// same. What is made of it are the launches behind: a two-shot all-reduce on the buffers, or a plan.
#include "team.h"

struct AgreeShared {
    Trouble trouble;
    // This rank's buffers.
    Offer own;
    // Who has found them; that a rank has not registered its; that this rank does not reach a peer's; and that a peer does not.
    Claim found[2], none, lacks, refused;
};

// Where a peer's buffer is, as this rank's device reaches it; or 0, and the host is told.
METHOD u64 reach(Book *book, u32 peer, u32 which, u64 number, u64 place) {
    const Reached &reached = book->reached[peer][number % REGISTERED];
    if (acquire(&reached.number) == number) return acquire(&reached.at) + place;
    note(&book->missing[peer][which], number);
    return 0;
}

// `count` are the bytes of each buffer.
METHOD void agree(const Launch &launch, AgreeShared &shared) {
    const Call call = call_of(launch);
    Member member;
    if (thread() == 0) {
        const Offer nothing = {0, 0, 0, 0};
        shared.own = nothing;
        unclaim(shared.found[0]);
        unclaim(shared.found[1]);
        unclaim(shared.none);
        unclaim(shared.lacks);
        unclaim(shared.refused);
    }
    member.begin(launch, call, shared.trouble);
    Team *team = (Team *)member.team;
    Book *book = team->book;
    const u64 input = (u64)call.input, output = (u64)call.output, bytes = call.count;
#pragma unroll 1
    for (u32 i = thread(); i < REGISTERED; i += threads()) {
        const Registered &one = book->own[i];
        const u64 number = acquire(&one.number);
        if (number == 0) continue;
        const u64 from = acquire(&one.from), to = acquire(&one.to);
        if (from <= input && input + bytes <= to && claim(shared.found[0])) {
            shared.own.input_at = input - from;
            shared.own.input = number;
        }
        if (from <= output && output + bytes <= to && claim(shared.found[1])) {
            shared.own.output_at = output - from;
            shared.own.output = number;
        }
    }
    barrier();
#pragma unroll 1
    for (u32 peer = thread(); peer < member.ranks; peer += threads()) {
        if (peer != member.rank) *member.offer(peer, member.rank) = shared.own;
    }
    bool is_well = member.meet(ENTRY), is_mapped = false;
    if (is_well) {
#pragma unroll 1
        for (u32 peer = thread(); peer < member.ranks; peer += threads()) {
            const Offer offer = peer == member.rank ? shared.own : *member.offer(member.rank, peer);
            if (offer.input == 0 || offer.output == 0) {
                claim(shared.none);
                continue;
            }
            u64 from = input, into = output;
            if (peer != member.rank) {
                from = reach(book, peer, 0, offer.input, offer.input_at);
                into = reach(book, peer, 1, offer.output, offer.output_at);
            }
            if (from == 0 || into == 0) claim(shared.lacks);
            team->input[peer] = (const u8 *)from;
            team->output[peer] = (u8 *)into;
        }
        barrier();
        // All have seen the same offers: where one of them is none, nobody asks.
        if (!is_claimed(shared.none)) {
            const bool lacks = is_claimed(shared.lacks);
            member.announce(ANSWER, lacks ? 0 : 1);
#pragma unroll 1
            for (u32 peer = thread(); peer < member.ranks; peer += threads()) {
                if (peer == member.rank) continue;
                member.watch.move = ANSWER;
                const Flag *flag = team->flags[member.rank] + member.place(ANSWER, peer);
                u64 found;
                if (member.watch.await_mark(flag, member.epoch, peer, found) && found >> 32 == 0) claim(shared.refused);
            }
            barrier();
            is_well = !is_claimed(shared.trouble.claimed);
            is_mapped = !lacks && !is_claimed(shared.refused);
        }
    }
    if (thread() == 0) {
        if (is_well && is_mapped) note(&book->made, team->agreed->made += 1);
        release(&team->agreed->verdict, !is_well ? 0 : is_mapped ? MAPPED : BY_PLAN);
    }
    member.end(false);
}

#if defined(FAMILY)
KERNEL(rdmaccl_agree, (const Launch launch)) {
    SHARED(AgreeShared, shared);
    agree(launch, shared);
}
#endif
