// All kernels in one program, each for all families: which is looked up when it is launched.
#pragma once
#include "../agree.cu"
#include "../all_reduce.cu"
#include "../finish.cu"
#include "../interpret.cu"
#include "../measure.cu"
#include "../multicast.cu"

// Which kernel.
enum What { INTERPRET, TWO_SHOT, ONE_SHOT, PACKETS, MEET, PING, FINISH, ADD, AGREE, MULTICAST, STAGED };

template <class F> void interpret_family(const Launch &launch) {
    SHARED(Shared, shared);
    interpret<F>(launch, shared);
}
static void agree_alone(const Launch &launch) {
    SHARED(AgreeShared, shared);
    agree(launch, shared);
}
template <class F> void all_reduce_family(const Launch &launch, u64 what) {
    SHARED(TeamShared, shared);
    if (what == TWO_SHOT) two_shot<F>(launch, shared);
    if (what == ONE_SHOT) one_shot<F>(launch, shared);
    if (what == PACKETS) packets<F>(launch, shared);
    if (what == STAGED) staged<F>(launch, shared);
    if (what == MULTICAST) multicast<F>(launch, shared);
}

// In the order of `Family::ALL`. A program with a planted bug is compiled for one type only.
#if defined(PLANTED)
#define INTERPRETER(family) interpret_family<SumsF32>
#define ALL_REDUCE(family) all_reduce_family<SumsF32>
#else
#define INTERPRETER(family) interpret_family<family>
#define ALL_REDUCE(family) all_reduce_family<family>
#endif
static void (*const INTERPRETERS[])(const Launch &) = {
    INTERPRETER(SumsI8),  INTERPRETER(SumsI16),  INTERPRETER(SumsI32),  INTERPRETER(SumsI64),  INTERPRETER(SumsF16),
    INTERPRETER(SumsF32), INTERPRETER(SumsF64),  INTERPRETER(SumsBF16), INTERPRETER(SumsE4M3), INTERPRETER(SumsE5M2),
    INTERPRETER(Order8),  INTERPRETER(Order16),  INTERPRETER(Order32),  INTERPRETER(Order64),  INTERPRETER(Bits),
};
static void (*const ALL_REDUCES[])(const Launch &, u64) = {
    nullptr, nullptr, nullptr, nullptr, ALL_REDUCE(SumsF16), ALL_REDUCE(SumsF32), nullptr, ALL_REDUCE(SumsBF16),
};

// By a thread of a block, whose memory has room for what any kernel shares.
static inline void play_kernel(What what, u64 family, const Launch &launch) {
    SHARED(Trouble, trouble);
    switch (what) {
    case INTERPRET: INTERPRETERS[family](launch); break;
    case MEET: meet(launch, trouble); break;
    case PING: ping(launch, trouble); break;
    case FINISH: finish(launch); break;
    case ADD: plain_add(launch); break;
    case AGREE: agree_alone(launch); break;
    default: ALL_REDUCES[family](launch, what);
    }
}
