#define _GNU_SOURCE
#include "watch.h"
#include "timing.h"
#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, MOST_RANKS = 64, ROUNDS = 15, TRIPS = 100, PATIENCE = 200, SPINS = 1 << 12 };
static const unsigned over = ~0u;
static const useconds_t doze = 50, respite = 50000;
/* Rank 0 waits no longer than that for the others, and for an answer: theirs may be a core's turn away. */
static const double meeting_seconds = 1, answer_seconds = 2e-3;

/* A look is known by its number, and numbers only grow. */
struct page {
    _Alignas(64) atomic_uint there;
    _Alignas(64) atomic_uint back;
    _Alignas(64) atomic_uint chosen; /* the look whose partner is chosen */
    int partner;                     /* 0: nobody */
    _Alignas(64) atomic_uint done;   /* the look whose verdict stands */
    bool as_it_should_be;
    _Alignas(64) atomic_uint arrived[MOST_RANKS]; /* the look that each rank has come to */
    int core[MOST_RANKS];
};
_Static_assert(sizeof(struct page) <= PAGE, "what the ranks share is a page");

struct watch watch_open(const char *text, int rank, int ranks) {
    struct watch watch = {.rank = rank, .ranks = ranks, .left = PATIENCE};
    int path = 0;
    if (!text || ranks < 2) return watch;
    if (ranks > MOST_RANKS || sscanf(text, "%lf:%lf:%n", &watch.low, &watch.high, &path) != 2 || !path) {
        fprintf(stderr, "-w takes LOW:HIGH:FILE, with %d ranks at most, not %s\n", MOST_RANKS, text);
        exit(2);
    }
    int file = open(text + path, O_RDWR | O_CLOEXEC);
    void *page = file < 0 ? MAP_FAILED : mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (page == MAP_FAILED) {
        perror(text + path);
        exit(2);
    }
    close(file);
    watch.page = page;
    /* Nobody has looked before all ranks have come here: they make barriers first. */
    if (atomic_load(&watch.page->chosen)) {
        fprintf(stderr, "-w: %s is no page of zeros: others have met there\n", text + path);
        exit(2);
    }
    return watch;
}

/* Sleeps until `line` holds this look, or a later one. */
static void await(atomic_uint *line, unsigned look) {
    while ((int)(atomic_load_explicit(line, memory_order_acquire) - look) < 0) usleep(doze);
}

static void answer(struct page *page) {
    for (unsigned last = 0, seen; (seen = atomic_load_explicit(&page->there, memory_order_acquire)) != over;)
        if (seen != last) atomic_store_explicit(&page->back, last = seen, memory_order_release);
}

/* Whether the answer to trip `i` came. */
static bool trip(struct page *page, unsigned i) {
    atomic_store_explicit(&page->there, i, memory_order_release);
    double end = 0;
    for (int spin = 0; atomic_load_explicit(&page->back, memory_order_acquire) != i; spin++) {
        if (spin < SPINS) continue;
        if (end == 0) end = now() + answer_seconds;
        else if (now() > end) return false;
        spin = 0;
    }
    return true;
}

/* The nanoseconds that a line takes one way, the median over rounds; negative if an answer did not come. */
static double one_way(struct page *page) {
    double rounds[ROUNDS];
    unsigned i = 1;
    for (int round = 0; round < ROUNDS; round++) {
        double begin = now();
        for (int t = 0; t < TRIPS; t++)
            if (!trip(page, i++)) return -1;
        rounds[round] = (now() - begin) / (2 * TRIPS) * 1e9;
    }
    return median(rounds, ROUNDS);
}

/* A rank that has come to this look and runs on another core; 0 if there is none. */
static int partner(struct page *page, int ranks, unsigned look) {
    int found = 0, core = sched_getcpu();
    double end = now() + meeting_seconds;
    for (int rank = 1; rank < ranks; rank++) {
        while (atomic_load_explicit(&page->arrived[rank], memory_order_acquire) != look) {
            if (now() > end) return 0;
            usleep(doze);
        }
        if (!found && page->core[rank] != core) found = rank;
    }
    return found;
}

bool watch_look(struct watch *watch) {
    struct page *page = watch->page;
    if (!page) return true;
    unsigned look = ++watch->looks;
    watch->left--;
    if (watch->rank) {
        page->core[watch->rank] = sched_getcpu();
        atomic_store_explicit(&page->arrived[watch->rank], look, memory_order_release);
        await(&page->chosen, look);
        if (page->partner == watch->rank) answer(page);
        await(&page->done, look);
        return page->as_it_should_be;
    }
    page->partner = partner(page, watch->ranks, look);
    page->there = page->back = 0;
    atomic_store_explicit(&page->chosen, look, memory_order_release);
    double taken = page->partner ? one_way(page) : -1;
    bool as_it_should_be = taken >= watch->low && taken <= watch->high;
    page->there = over;
    page->as_it_should_be = as_it_should_be;
    atomic_store_explicit(&page->done, look, memory_order_release);
    return as_it_should_be;
}

bool watch_wait(struct watch *watch) {
    while (!watch_look(watch)) {
        if (watch->left <= 0) return false;
        usleep(respite);
    }
    return true;
}
