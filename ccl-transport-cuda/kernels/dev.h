// What the kernels need of a machine: threads in blocks, memory, flags and a clock. This file alone knows who compiles:
// nvcc and NVRTC make code for a GPU, g++ makes the same kernels for threads of a CPU, where ThreadSanitizer watches them
// (emulate/threads.h has that half).
//
// Two kinds of memory access exist. *Plain* ones carry data: they may be cached and reordered, and two of them that race are a
// bug, which the emulation finds. *Flags* order them: a release makes all that its block wrote before the barrier visible to
// whoever acquires it, on this device, on another one or on the host, so all of them have system scope.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed char i8;
typedef short i16;
typedef int i32;
typedef long long i64;

// 16 bytes, the widest access that there is.
struct alignas(16) Vec {
    u32 word[4];
};

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)

#define DEVICE static __device__ __forceinline__
#define METHOD __device__ __forceinline__
#define FUNCTION __device__ __noinline__
// No kernel is launched with more threads than this to a block; half of the register file is left to nobody else.
#define THREADS 512
#define KERNEL(name, arguments) extern "C" __global__ void __launch_bounds__(THREADS, 1) name arguments
#define SHARED(type, name) __shared__ type name

DEVICE u32 thread() { return threadIdx.x; }
DEVICE u32 threads() { return blockDim.x; }
DEVICE u32 block() { return blockIdx.x; }
// All threads of the block have come here, and see what each wrote before.
DEVICE void barrier() { __syncthreads(); }
// Called in every turn of a wait.
DEVICE void pause() {}
// A wait looks for an abort and at the clock once in so many turns.
#define PATIENCE 256u
// Bytes that are combined at one go: fewer than 32 bits count, in whole lines.
#define LONGEST (1u << 30)

DEVICE u64 address(const void *at) { return __cvta_generic_to_global(at); }

DEVICE Vec load(const Vec *at) {
    Vec v;
    asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3])
                 : "l"(address(at))
                 : "memory");
    return v;
}
DEVICE void store(Vec *at, const Vec &v) {
    asm volatile("st.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(address(at)), "r"(v.word[0]), "r"(v.word[1]), "r"(v.word[2]),
                 "r"(v.word[3])
                 : "memory");
}

// Stores to the memories of all ranks that are behind an address, bit by bit as it is. It is there from sm_90 and PTX 8.1 on, and the only access by such an
// address that there is.
DEVICE void store_to_all(Vec *at, const Vec &v) {
    asm volatile("multimem.st.relaxed.sys.global.v4.f32 [%0], {%1,%2,%3,%4};" ::"l"(address(at)), "r"(v.word[0]), "r"(v.word[1]),
                 "r"(v.word[2]), "r"(v.word[3])
                 : "memory");
}
// Behind this thread's stores to all, and before what publishes them: whoever then reads the memory by its other address finds them.
DEVICE void join_addresses() { asm volatile("fence.proxy.alias;" ::: "memory"); }

// A word that orders memory, and is touched by the functions below only.
class Flag {
    u64 word;

    friend __device__ u64 acquire(const Flag *);
    friend __device__ void release(Flag *, u64);
};
__device__ __forceinline__ u64 acquire(const Flag *flag) {
    u64 value;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(address(&flag->word)) : "memory");
    return value;
}
__device__ __forceinline__ void release(Flag *flag, u64 value) {
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(address(&flag->word)), "l"(value) : "memory");
}

// A word by which the host says that all is over. It orders nothing.
class Alarm {
    u32 word;

    friend __device__ u32 look(const Alarm *);
};
__device__ __forceinline__ u32 look(const Alarm *alarm) {
    u32 value;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(address(&alarm->word)) : "memory");
    return value;
}

// A word by which a kernel tells the host where it is. It orders nothing.
class Mark {
    u64 word;

    friend __device__ void note(Mark *, u64);
};
__device__ __forceinline__ void note(Mark *mark, u64 value) {
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(address(&mark->word)), "l"(value) : "memory");
}

// Two words of data, each beside its own flag: each half arrives as a whole, so no order among halves is needed.
class Packet {
    u64 half[2];

    friend __device__ void send(Packet *, u64, u64);
    friend __device__ void receive(const Packet *, u64 &, u64 &);
};
__device__ __forceinline__ void send(Packet *packet, u64 first, u64 second) {
    asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1,%2};" ::"l"(address(packet)), "l"(first), "l"(second) : "memory");
}
__device__ __forceinline__ void receive(const Packet *packet, u64 &first, u64 &second) {
    asm volatile("ld.relaxed.sys.global.v2.u64 {%0,%1}, [%2];" : "=l"(first), "=l"(second) : "l"(address(packet)) : "memory");
}

// A word of the block's own memory; whether this thread is the first to claim it.
class Claim {
    u32 word;

    friend __device__ void unclaim(Claim &);
    friend __device__ bool claim(Claim &);
    friend __device__ bool is_claimed(const Claim &);
    friend __device__ bool may_be_claimed(Claim &);
};
__device__ __forceinline__ void unclaim(Claim &c) { c.word = 0; }
__device__ __forceinline__ bool claim(Claim &c) { return atomicCAS(&c.word, 0u, 1u) == 0; }
// After a barrier behind all claims.
__device__ __forceinline__ bool is_claimed(const Claim &c) { return c.word != 0; }
// At any time, for a thread that waits: perhaps not yet, but sooner or later.
__device__ __forceinline__ bool may_be_claimed(Claim &c) { return atomicCAS(&c.word, 1u, 1u) != 0; }

// Nanoseconds.
DEVICE u64 now() {
    u64 time;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
    return time;
}

DEVICE float single(u32 bits) { return __uint_as_float(bits); }
DEVICE u32 bits(float value) { return __float_as_uint(value); }
DEVICE double real(u64 bits) { return __longlong_as_double((i64)bits); }
DEVICE u64 bits(double value) { return (u64)__double_as_longlong(value); }
// Each rounds to nearest by itself: none are fused.
DEVICE float add(float a, float b) { return __fadd_rn(a, b); }
DEVICE float multiply(float a, float b) { return __fmul_rn(a, b); }
DEVICE double add(double a, double b) { return __dadd_rn(a, b); }
DEVICE double multiply(double a, double b) { return __dmul_rn(a, b); }
// IEEE half precision: the instructions that every device has, in place of Format's.
#define HALF_INSTRUCTIONS
DEVICE float from_half(u16 code) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(code));
    return value;
}
DEVICE u16 to_half(float value) {
    u16 code;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(code) : "f"(value));
    return code;
}

#else
#include "emulate/threads.h"
#endif

// Bugs are planted in the emulation only, to see that it finds them.
#if !defined(BUG_NO_EXIT)
#define BUG_NO_EXIT 0
#endif
#if !defined(BUG_OTHER_READER)
#define BUG_OTHER_READER 0
#endif
#if !defined(BUG_NO_ENTRY)
#define BUG_NO_ENTRY 0
#endif
#if !defined(BUG_NO_BARRIER)
#define BUG_NO_BARRIER 0
#endif
#if !defined(BUG_HALF_PACKET)
#define BUG_HALF_PACKET 0
#endif
#if !defined(BUG_NO_CREDIT)
#define BUG_NO_CREDIT 0
#endif
