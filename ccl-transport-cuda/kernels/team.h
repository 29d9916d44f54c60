// Ranks that all reach each other's memory, and what they keep there for kernels that are no plans.
#pragma once
#include "wait.h"

// Ranks of a team, and blocks of a rank, at most.
#define RANKS 16u
#define BLOCKS 128u

// What a rank's flags are for. Each kind has a flag per parity of the epoch, block and rank.
enum Moment { ENTRY = 0, EXIT = 1, ANSWER = 2, MOMENTS = 3 };

// Buffers that a rank has registered at a time, as far as kernels know them.
#define REGISTERED 64u

// Where the buffers of a rank's call are: numbers of registrations, and how far from their beginnings. 0: in none.
struct Offer {
    u64 input, input_at, output, output_at;
};

// A registered buffer of this rank. All words are the host's: it writes the number last, and takes it away first.
struct Registered {
    Flag number, from, to;
};

// Where this rank's device reaches a peer's registered buffer.
struct Reached {
    Flag number, at;
};

// What a rank's host and its kernels tell each other of registered buffers, in memory of the host. A registration's place is its number
// modulo REGISTERED, at its owner and at all others.
struct Book {
    Registered own[REGISTERED];
    Reached reached[RANKS][REGISTERED];
    // The kernels' words: numbers of peers' registrations that calls were on and that are not reached, of send and receive buffers.
    Mark missing[RANKS][2];
    // How many calls were made on registered buffers.
    Mark made;
};

// What ranks have agreed on for the call at hand: 0 that it goes wrong.
enum Verdict { BY_PLAN = 1, MAPPED = 2 };
struct Agreed {
    Flag verdict;
    u64 made;
};

// In the device's memory, one per rank. What lies at a peer is an address of this device.
struct Team {
    u32 rank, ranks;
    // Bytes of one rank's part of `stage`, whole vectors; bytes of data in one rank's part of `packets`, 8 to each.
    u64 room, packet_room;
    // How many calls there were: one word for each block, all alike between calls. It outlives the call, and is counted by the kernel,
    // since a launch from a graph has the same arguments each time.
    u32 *epochs;
    Agreed *agreed;
    Book *book;
    Flag *flags[RANKS];
    u8 *stage[RANKS];
    Packet *packets[RANKS];
    // Buffers that are mapped: where all ranks have agreed that they are, else known beforehand.
    const u8 *input[RANKS];
    u8 *output[RANKS];
    Offer *offers[RANKS];
    // Where there is multicast: an address for this memory of all ranks, to which only `store_to_all` may store, and where this rank reads
    // its own of it.
    u8 *everywhere;
    const u8 *received;
};

// 0 is what memory holds that was never written; and parities alternate.
METHOD u32 epoch_after(u32 epoch) { return epoch + 1 == 0 ? 2 : epoch + 1; }

// Where rank `from` leaves data for rank `at` in an epoch. What was left there two epochs ago has been read: `at` has since said that it had
// begun the epoch between, and it begins one when it has ended the one before.
METHOD u8 *stage_of(const Team &team, u32 epoch, u32 at, u32 from) { return team.stage[at] + ((epoch & 1) * team.ranks + from) * team.room; }

// A rank's block in a call.
struct Member {
    const Team *team;
    Trouble *trouble;
    const Call *call;
    Watch watch;
    u64 tag;
    u32 rank, ranks, block_index, blocks, epoch;

    METHOD void begin(const Launch &launch, const Call &of, Trouble &where) {
        call = &of;
        team = of.team;
        trouble = &where;
        block_index = block() % launch.blocks;
        blocks = launch.blocks;
        rank = team->rank;
        ranks = team->ranks;
        tag = of.tag & 0xffffffff;
        // Asked for before the host is told anything: both are on their way at a time.
        epoch = epoch_after(team->epochs[block_index]);
        if (block_index == 0) log_begin(of, 0);
        watch.begin(of, where);
        watch.lane = block_index;
        if (thread() == 0) unclaim(where.claimed);
        barrier();
    }
    METHOD u32 parity() const { return epoch & 1; }
    METHOD u32 place(Moment moment, u32 peer) const {
        return ((moment * 2 + parity()) * BLOCKS + block_index) * RANKS + peer;
    }
    METHOD u8 *stage(u32 at, u32 from) const { return stage_of(*team, epoch, at, from); }
    // The same by multicast: where this rank leaves data for all at once, and where it finds what `from` has left.
    METHOD u8 *everywhere() const { return team->everywhere + (parity() * ranks + rank) * team->room; }
    METHOD const u8 *received(u32 from) const { return team->received + (parity() * ranks + from) * team->room; }
    // The first packet of each part is not data: it holds the call's tag.
    METHOD Packet *packets(u32 at, u32 from) const {
        return team->packets[at] + (parity() * RANKS + from) * (team->packet_room / 8 + 1);
    }

    // Where rank `from` says to rank `at` where its buffers are. As with `stage`.
    METHOD Offer *offer(u32 at, u32 from) const { return team->offers[at] + parity() * RANKS + from; }

    // Behind a barrier: tells all peers' same blocks that this one has come here, and a word.
    METHOD void announce(Moment moment, u64 word) const {
#pragma unroll 1
        for (u32 peer = thread(); peer < ranks; peer += threads()) {
            if (peer != rank) release(team->flags[peer] + place(moment, rank), (u64)epoch | word << 32);
        }
    }
    // Waits for all peers' same blocks; whether they have come.
    METHOD bool gather(Moment moment) {
#pragma unroll 1
        for (u32 peer = thread(); peer < ranks; peer += threads()) {
            if (peer == rank) continue;
            watch.move = moment;
            const Flag *flag = team->flags[rank] + place(moment, peer);
            u64 found;
            if (watch.await_mark(flag, epoch, peer, found) && found >> 32 != tag) watch.fail(MISMATCH, peer, tag, found >> 32);
        }
        barrier();
        return !is_claimed(trouble->claimed);
    }
    // What is written before it by any is read behind it by all, block by block.
    METHOD bool meet(Moment moment) {
        barrier();
        announce(moment, tag);
        return gather(moment);
    }
    // Whether a call of so many bytes fits into so much room; if not it is over.
    METHOD bool fits(u64 bytes, u64 room) const {
        if (bytes <= room) return true;
        if (thread() == 0) watch.fail(LENGTH, 0, room, bytes);
        end();
        return false;
    }
    METHOD void end(bool is_last = true) const {
        barrier();
        if (is_claimed(trouble->claimed)) return tell(*trouble, *call, call->reports + block_index);
        if (block_index == 0) is_last ? log_end(*call, 0) : log_stay(*call, 0);
        // Blocks that this call did not have are counted too, all at a time.
#pragma unroll 1
        for (u32 i = block_index + blocks * thread(); i < BLOCKS; i += blocks * threads()) team->epochs[i] = epoch;
    }
};
