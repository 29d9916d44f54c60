// The kernels as a shared object: what ccl-fake-cuda launches where a driver would launch PTX. A launch has a thread of the CPU for each
// thread of all its blocks at once.
#include "kernels.h"
#include <cstdlib>
#include <vector>

thread_local Emulated emulated;

namespace {

// In the order of the tables.
const char *const FAMILIES[] = {"SumsI8",   "SumsI16",  "SumsI32", "SumsI64", "SumsF16", "SumsF32", "SumsF64", "SumsBF16",
                                "SumsE4M3", "SumsE5M2", "Order8",  "Order16", "Order32", "Order64", "Bits"};
// In the order of `What`.
const char *const KERNELS[] = {"rdmaccl_interpret", "rdmaccl_two_shot", "rdmaccl_one_shot", "rdmaccl_packets",
                               "rdmaccl_meet",      "rdmaccl_ping",     "rdmaccl_finish",   "rdmaccl_add",
                               "rdmaccl_agree",     "rdmaccl_multicast", "rdmaccl_staged"};
const u32 WHATS = sizeof KERNELS / sizeof *KERNELS;

struct Place {
    Emulated self;
    u32 number;
    const Launch *launch;
};

void *play(void *argument) {
    const Place &place = *static_cast<Place *>(argument);
    emulated = place.self;
    play_kernel((What)(place.number % WHATS), place.number / WHATS, *place.launch);
    return nullptr;
}

// The driver's answer to `memories_of`.
u32 (*asked)(const void *, void **) = nullptr;

} // namespace

u32 memories_of(const void *at, void **into) { return asked(at, into); }

// Before the first launch: who knows the memories behind an address, 16 at most.
extern "C" void emulated_multicast(u32 (*ask)(const void *, void **)) { asked = ask; }

extern "C" size_t emulated_parameter() { return sizeof(Launch); }

// The number of a kernel for a family, counted from 1; 0 where there is none.
extern "C" u32 emulated_find(const char *family, const char *kernel) {
    for (u32 f = 0; f < sizeof FAMILIES / sizeof *FAMILIES; ++f) {
        for (u32 what = 0; what < WHATS; ++what) {
            if (strcmp(family, FAMILIES[f]) != 0 || strcmp(kernel, KERNELS[what]) != 0) continue;
            const bool reduces = what == TWO_SHOT || what == ONE_SHOT || what == PACKETS || what == MULTICAST;
            return reduces && (f >= sizeof ALL_REDUCES / sizeof *ALL_REDUCES || !ALL_REDUCES[f]) ? 0 : 1 + f * WHATS + what;
        }
    }
    return 0;
}

// Returns when all threads have ended; 0, or why there are not so many threads.
extern "C" u32 emulated_run(u32 number, const void *parameter, u32 blocks, u32 threads) {
    Launch launch;
    memcpy(&launch, parameter, sizeof launch);
    const size_t room = (sizeof(Shared) + sizeof(TeamShared) + 127) / 64 * 64;
    std::vector<pthread_barrier_t> barriers(blocks);
    std::vector<void *> shared(blocks);
    std::vector<Place> places;
    for (u32 b = 0; b < blocks; ++b) {
        pthread_barrier_init(&barriers[b], nullptr, threads);
        shared[b] = aligned_alloc(64, room);
        memset(shared[b], 0, room);
        for (u32 t = 0; t < threads; ++t) places.push_back({{t, threads, b, &barriers[b], shared[b]}, number - 1, &launch});
    }
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 256 << 10);
    std::vector<pthread_t> running;
    for (Place &place : places) {
        pthread_t thread;
        const int failed = pthread_create(&thread, &small, play, &place);
        // Blocks wait for each other: with some of them only there is no going on, nor back.
        if (failed != 0) abort();
        running.push_back(thread);
    }
    for (pthread_t thread : running) pthread_join(thread, nullptr);
    pthread_attr_destroy(&small);
    for (u32 b = 0; b < blocks; ++b) {
        pthread_barrier_destroy(&barriers[b]);
        free(shared[b]);
    }
    return 0;
}
