// The half of dev.h for g++: a thread of a block is a thread of the CPU, a barrier is a pthread barrier, flags are atomics.
// Included by dev.h only.
#pragma once
#include <atomic>
#include <cstring>
#include <ctime>
#include <pthread.h>
#include <sched.h>

#define DEVICE static inline
#define METHOD inline
#define FUNCTION static
#define KERNEL(name, arguments) static void name arguments
// The emulator puts a block's memory in place before the block's threads begin.
#define SHARED(type, name) type &name = *static_cast<type *>(emulated.shared)
#define PATIENCE 1u
// So short that calls have several.
#define LONGEST 512u

#if defined(BUG_RELAXED)
#define RELEASE std::memory_order_relaxed
#else
#define RELEASE std::memory_order_release
#endif

// What a thread knows of itself.
struct Emulated {
    u32 thread, threads, block;
    pthread_barrier_t *barrier;
    void *shared;
};
extern thread_local Emulated emulated;

DEVICE u32 thread() { return emulated.thread; }
DEVICE u32 threads() { return emulated.threads; }
DEVICE u32 block() { return emulated.block; }
DEVICE void barrier() { pthread_barrier_wait(emulated.barrier); }
// Fewer cores than threads: whoever waits makes room.
DEVICE void pause() { sched_yield(); }

DEVICE Vec load(const Vec *at) { return *at; }
DEVICE void store(Vec *at, const Vec &v) { *at = v; }

// The memories behind an address that stands for several: where each is, and how many there are. Whoever plays knows.
u32 memories_of(const void *at, void **into);
DEVICE void store_to_all(Vec *at, const Vec &v) {
    void *all[16];
    u32 count = memories_of(at, all);
#if defined(BUG_ONE_MEMORY)
    count = count != 0;
#endif
    for (u32 i = 0; i < count; ++i) store((Vec *)all[i], v);
}
// All addresses of some memory are alike here.
DEVICE void join_addresses() {}

class Flag {
    std::atomic<u64> word;

    friend u64 acquire(const Flag *);
    friend void release(Flag *, u64);
};
inline u64 acquire(const Flag *flag) { return flag->word.load(std::memory_order_acquire); }
inline void release(Flag *flag, u64 value) { flag->word.store(value, RELEASE); }

class Alarm {
    std::atomic<u32> word;

    friend u32 look(const Alarm *);
    friend void ring(Alarm *);
};
inline u32 look(const Alarm *alarm) { return alarm->word.load(std::memory_order_relaxed); }
// The host's side.
inline void ring(Alarm *alarm) { alarm->word.store(1, std::memory_order_relaxed); }

class Mark {
    std::atomic<u64> word;

    friend void note(Mark *, u64);
    friend u64 seen(const Mark *);
};
inline void note(Mark *mark, u64 value) { mark->word.store(value, std::memory_order_relaxed); }
// The host's side.
inline u64 seen(const Mark *mark) { return mark->word.load(std::memory_order_relaxed); }

class Packet {
    std::atomic<u64> half[2];

    friend void send(Packet *, u64, u64);
    friend void receive(const Packet *, u64 &, u64 &);
};
inline void send(Packet *packet, u64 first, u64 second) {
    packet->half[0].store(first, std::memory_order_relaxed);
    // Halves come when they like.
    sched_yield();
    packet->half[1].store(second, std::memory_order_relaxed);
}
inline void receive(const Packet *packet, u64 &first, u64 &second) {
    first = packet->half[0].load(std::memory_order_relaxed);
    second = packet->half[1].load(std::memory_order_relaxed);
}

class Claim {
    std::atomic<u32> word;

    friend void unclaim(Claim &);
    friend bool claim(Claim &);
    friend bool is_claimed(const Claim &);
    friend bool may_be_claimed(Claim &);
};
inline void unclaim(Claim &c) { c.word.store(0, std::memory_order_relaxed); }
inline bool claim(Claim &c) { return c.word.exchange(1, std::memory_order_relaxed) == 0; }
inline bool is_claimed(const Claim &c) { return c.word.load(std::memory_order_relaxed) != 0; }
inline bool may_be_claimed(Claim &c) { return is_claimed(c); }

DEVICE u64 now() {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (u64)time.tv_sec * 1000000000u + (u64)time.tv_nsec;
}

template <class To, class From> static inline To same_bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "of one size");
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}
DEVICE float single(u32 bits) { return same_bits<float>(bits); }
DEVICE u32 bits(float value) { return same_bits<u32>(value); }
DEVICE double real(u64 bits) { return same_bits<double>(bits); }
DEVICE u64 bits(double value) { return same_bits<u64>(value); }
DEVICE float add(float a, float b) { return a + b; }
DEVICE float multiply(float a, float b) { return a * b; }
DEVICE double add(double a, double b) { return a + b; }
DEVICE double multiply(double a, double b) { return a * b; }
