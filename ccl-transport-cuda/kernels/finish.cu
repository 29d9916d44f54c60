// Means of integers: the finished sums in a call's output, divided and rounded towards zero. A launch of its own behind the call's, as
// ranks pass sums on while they go.
#include "program.h"

// `factor` is the divisor; `op` is the size of an element in bytes, and 16 more where it is signed.
template <class T> METHOD void divide(T *output, u64 count, u64 divisor, u64 from, u64 step) {
#pragma unroll 1
    for (u64 i = from; i < count; i += step) output[i] = (T)(output[i] / (T)divisor);
}
// Divisors are wider than these types: a mean over 300 ranks is one of bytes too.
template <class T> METHOD void divide_wide(T *output, u64 count, u64 divisor, u64 from, u64 step) {
#pragma unroll 1
    for (u64 i = from; i < count; i += step) output[i] = (T)((i64)output[i] / (i64)divisor);
}
METHOD void finish(const Launch &launch) {
    const Call call = call_of(launch);
    const u64 from = (u64)(block() % launch.blocks) * threads() + thread(), step = (u64)launch.blocks * threads();
    const u64 divisor = call.rule.factor;
    u8 *output = call.output;
    switch (call.rule.op) {
    case 1: divide_wide((u8 *)output, call.count, divisor, from, step); break;
    case 2: divide_wide((u16 *)output, call.count, divisor, from, step); break;
    case 4: divide_wide((u32 *)output, call.count, divisor, from, step); break;
    case 8: divide((u64 *)output, call.count, divisor, from, step); break;
    case 17: divide_wide((i8 *)output, call.count, divisor, from, step); break;
    case 18: divide_wide((i16 *)output, call.count, divisor, from, step); break;
    case 20: divide_wide((i32 *)output, call.count, divisor, from, step); break;
    case 24: divide((i64 *)output, call.count, divisor, from, step); break;
    }
}

#if defined(FAMILY)
KERNEL(rdmaccl_finish, (const Launch launch)) { finish(launch); }
#endif
