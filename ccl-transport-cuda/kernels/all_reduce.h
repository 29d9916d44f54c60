// What all-reduces of a team have in common.
#pragma once
#include "move.h"
#include "team.h"

struct TeamShared {
    Trouble trouble;
    Operands operands;
    Rule rule;
    // The call's buffers, kept here and not in registers.
    const u8 *input;
    u8 *output;
    // Of a call in rounds: its bytes, and how many are done.
    u64 bytes, done;
};

// A run of bytes.
struct Run {
    u64 at, len;
};
// Part `index` of `parts` of `bytes`, cut at whole lines.
METHOD Run part(u64 bytes, u32 index, u32 parts) {
    const u64 each = ((bytes + 63) / 64 + parts - 1) / parts * 64;
    const u64 from = each * index < bytes ? each * index : bytes, to = from + each < bytes ? from + each : bytes;
    Run run = {from, to - from};
    return run;
}

METHOD void set(Operands &operands, u32 index, const u8 *at) {
    operands.at[index] = (u8 *)at;
    operands.scaled[index] = 0;
}

// Once in a module, however many kernels have it.
template <class F> FUNCTION void combine(const Operands &operands, u32 sources, u32 sinks, u32 len, const Rule &rule) {
    make_move<F>(operands, sources, sinks, len, rule);
}

// Eight bytes of a buffer, of which `len` are there.
METHOD u64 load_word(const u8 *at, u32 len) {
    if (len == 8 && (u64)at % 8 == 0) return *(const u64 *)at;
    u64 word = 0;
#pragma unroll 1
    for (u32 i = 0; i < len; ++i) word |= (u64)at[i] << 8 * i;
    return word;
}
