// A rank's program as data, and what a launch is told. ccl-transport-cuda/src/program writes programs and checks them against the
// buffers before they come here; its `layout.rs` has the same numbers, and the emulation compares the two.
#pragma once
#include "number.h"

// In the lowest 16 bits of a program's first word.
#define PROGRAM_VERSION 2
// The rest of the word.
#define PROGRAM_MAGIC 0x52444d4143430000ull
#define PROGRAM_HEADER 8u
#define LANE_WORDS 3u
// Scratch pieces of a lane, and ends of its links, at most.
#define SCRATCHES 64u
#define ENDS 128u

// Fields of a program, of which each word has one or two halves.
METHOD u32 low(u64 word) { return (u32)word; }
METHOD u32 high(u64 word) { return (u32)(word >> 32); }

// word 0  magic and version
// word 1  words of the program | lanes
// word 2  rank | ranks
// word 3  moves | operands
// word 4  bytes of a tile | bytes of a slot
// word 5  0 | credits
// word 6  shares | scratch pieces
// word 7  whether it reduces | ends
struct Program {
    const u64 *words;

    METHOD u32 lanes() const { return high(words[1]); }
    METHOD u32 moves() const { return low(words[3]); }
    METHOD u32 tile() const { return low(words[4]); }
    METHOD u32 slot() const { return high(words[4]); }
    METHOD u32 credits() const { return high(words[5]); }
    METHOD u32 shares() const { return low(words[6]); }
    METHOD u32 scratches() const { return high(words[6]); }
    METHOD bool reduces() const { return low(words[7]) != 0; }
    METHOD const u64 *lane(u32 index) const { return words + PROGRAM_HEADER + LANE_WORDS * index; }
    METHOD const u64 *move(u32 index) const { return lane(lanes()) + 2 * index; }
    METHOD const u64 *operand(u32 index) const { return move(moves()) + index; }
};

// Three words: first move | moves; 16 bits each of first end, ends, first scratch piece, scratch pieces; tiles | whether it is a queue.
struct LaneCode {
    u64 word[LANE_WORDS];
    METHOD u32 first() const { return low(word[0]); }
    METHOD u32 moves() const { return high(word[0]); }
    METHOD u32 first_end() const { return (u32)(word[1] & 0xffff); }
    METHOD u32 ends() const { return (u32)(word[1] >> 16 & 0xffff); }
    METHOD u32 first_scratch() const { return (u32)(word[1] >> 32 & 0xffff); }
    // How often it is run, by all shares together.
    METHOD u32 tiles() const { return low(word[2]); }
    // Whether its moves are made one after the other, each for as many tiles as its chunk has: what one rank sends another in a row.
    METHOD bool is_queue() const { return high(word[2]) != 0; }
};

// Two words: first operand | 8 bits of sources | 8 bits of sinks | whether the length is known | 15 bits of salt; then the length of its
// chunk.
struct MoveCode {
    u64 word[2];
    METHOD u32 first() const { return low(word[0]); }
    METHOD u32 sources() const { return (u32)(word[0] >> 32 & 0xff); }
    METHOD u32 sinks() const { return (u32)(word[0] >> 40 & 0xff); }
    // Whether it has a chunk among its operands. Where not, its length is what arrives.
    METHOD bool has_chunk() const { return (word[0] >> 48 & 1) != 0; }
    // What its pieces have beside the call's tag: of what only the two ends of a link know.
    METHOD u64 salt() const { return word[0] >> 49; }
    METHOD u64 len() const { return word[1]; }
};

// One word: what it is, and a chunk's place in its buffer, or the number of a lane's scratch piece or end.
enum Kind { INPUT = 0, OUTPUT = 1, SCRATCH = 2, RECEIVE = 3, SEND = 4 };
struct OperandCode {
    u64 word;
    METHOD Kind kind() const { return (Kind)(word >> 60); }
    METHOD u64 place() const { return word & 0xfffffffffffffffull; }
};

// An end of a link: one per end of the program, for all of its shares one after the other. `slots` and `flags` are where the receiver
// is, `credit` is where the sender is; so each waits for a word nearby.
struct Wire {
    // Of `credits` slots each, and a word for each slot.
    u8 *slots;
    Flag *flags;
    // How many pieces the receiver has released: a word per share.
    Flag *credit;
    // How many pieces this end has sent or received: a word per share. It outlives the call.
    u32 *count;
};

// Why a block has stopped.
enum Failure { ABORTED = 1, LATE = 2, MISMATCH = 3, LENGTH = 4 };

// What a block says of it: written once, in memory that the host reads.
struct Report {
    // Last written. A `Failure`, with the upper half of the call's tag above it; 0 while there is none.
    Flag failure;
    u32 lane, move, tile, operand;
    u64 expected, found;
};

// Where a block is among the rank's calls, for the host: in the device's memory, and it outlives calls. A launch from a graph has the same
// arguments each time, so kernels count.
struct Log {
    // In memory of the host: the upper half of the call's tag; twice the number of calls that have begun, and 1 while the last one runs.
    Mark *mark;
    u64 calls;
};

// What one rank is told in one call.
struct Call {
    const u64 *program;
    const Wire *wires;
    const u8 *input;
    u8 *output;
    // Slots of all lanes of share 0, then of share 1, ….
    u8 *scratch;
    // Of this rank's team, for all-reduces that are not plans.
    const struct Team *team;
    const Alarm *alarm;
    // One per block.
    Report *reports;
    // After so many nanoseconds it gives up; 0: never.
    u64 limit;
    // Of the one buffer and the other, for what is not a plan.
    u64 count;
    // Low half: what the ranks of a call must agree on. Upper half: by what the host knows the call.
    u64 tag;
    // One per block, or none.
    Log *log;
    Rule rule;
    // What a launch before has found out, and what that must be for this one to do anything; or null.
    const Flag *when;
    u64 wanted;
};

METHOD bool is_wanted(const Call &call) { return call.when == 0 || acquire(call.when) == call.wanted; }

// A launch plays one rank, or several of one device as a gang: then blocks of rank 0 come first, and `gang` has a call for each rank.
struct Launch {
    Call own;
    const Call *gang;
    // Blocks of a rank.
    u32 blocks;
    u32 reserved;
};
METHOD Call call_of(const Launch &launch) { return launch.gang ? launch.gang[block() / launch.blocks] : launch.own; }

METHOD u64 named(u64 tag) { return tag & 0xffffffff00000000ull; }

// By a block of a rank when a call begins, and when it has ended without trouble. Where blocks do not wait for the same peers each does it,
// else the first. Where a call has several launches that do, all but the last leave it in the call, and the next gives it the same number.
METHOD void log_begin(const Call &call, u32 index) {
    if (thread() != 0 || !call.log) return;
    Log &log = call.log[index];
    log.calls += 1;
    note(log.mark, named(call.tag) | (log.calls << 1 & 0xffffffff) | 1);
}
METHOD void log_stay(const Call &call, u32 index) {
    if (thread() == 0 && call.log) call.log[index].calls -= 1;
}
METHOD void log_end(const Call &call, u32 index) {
    if (thread() != 0 || !call.log) return;
    const Log &log = call.log[index];
    note(log.mark, named(call.tag) | (log.calls << 1 & 0xffffffff));
}
