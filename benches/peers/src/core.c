#define _GNU_SOURCE
#include "core.h"
#include "timing.h"
#include "watch.h"
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <signal.h>
#include <unistd.h>

static const char *const collective_names[COLLECTIVES] = {"all_reduce", "all_gather", "reduce_scatter",
                                                          "broadcast",  "all_to_all", "reduce",
                                                          "gather",     "scatter",    "send_recv"};
static const char *const type_names[TYPES] = {"float32", "float16", "bfloat16"};
static const size_t type_bytes[TYPES] = {4, 2, 2};

enum place { OUT, IN, EACH, PLACES };
static const char *const place_names[PLACES] = {"out", "in", "each"};

struct cell {
    enum collective collective;
    enum place place;
    enum type type;
    size_t bytes;
};

static const double batch_seconds = 1e-3;
/* A call this long is warm after the one that was checked, and a few of them do. */
static const double long_seconds = 20e-3;
enum { LEAST_BATCHES = 5, LEAST_LONG_BATCHES = 3, MOST_TIMES = 20000, SETTLING_ROUNDS = 200, TRIES = 4 };

static void fail(const char *what, const char *which) {
    fprintf(stderr, "%s: %s\n", what, which);
    exit(2);
}

/* ---- the command line ---- */

static int position(const char *const *names, int count, const char *name) {
    for (int i = 0; name && i < count; i++)
        if (!strcmp(names[i], name)) return i;
    fail("no such collective, place or type", name ? name : "(none)");
    return 0;
}

static struct cell parse(char *text) {
    struct cell cell;
    char *rest;
    cell.collective = (enum collective)position(collective_names, COLLECTIVES, strtok_r(text, ":", &rest));
    cell.place = (enum place)position(place_names, PLACES, strtok_r(NULL, ":", &rest));
    cell.type = (enum type)position(type_names, TYPES, strtok_r(NULL, ":", &rest));
    char *bytes = strtok_r(NULL, ":", &rest), *end = bytes;
    cell.bytes = bytes ? strtoull(bytes, &end, 10) : 0;
    if (!cell.bytes || *end) fail("not a number of bytes", bytes ? bytes : "(none)");
    if (cell.place == IN && cell.collective >= REDUCE) fail("not in place", collective_names[cell.collective]);
    return cell;
}

/* ---- data: small integers, so that every order of additions gives the same sum, in bfloat16 too (up to 9 ranks) ---- */

static int element(int rank, size_t i) { return (rank + 1) * (1 + (int)(i % 5)); }

static uint16_t narrow(enum type type, float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (type == BFLOAT16) return (uint16_t)(bits >> 16);
    if (value == 0) return 0;
    uint32_t sign = bits >> 16 & 0x8000, exponent = (bits >> 23 & 0xff) - 127 + 15;
    return (uint16_t)(sign | exponent << 10 | (bits >> 13 & 0x3ff));
}

static uint32_t encoded(enum type type, int value) {
    uint32_t bits;
    float single = (float)value;
    memcpy(&bits, &single, sizeof bits);
    return type == FLOAT32 ? bits : narrow(type, single);
}

/* What a part of a buffer holds: the elements of a rank from one on. */
struct part {
    size_t first, count;
    int rank;
    size_t from;
};

static void put(enum type type, void *buffer, struct part part) {
    uint32_t values[5];
    for (int k = 0; k < 5; k++) values[k] = encoded(type, element(part.rank, (part.from + (size_t)k)));
    for (size_t i = 0, k = 0; i < part.count; i++, k = k == 4 ? 0 : k + 1)
        if (type == FLOAT32) ((uint32_t *)buffer)[part.first + i] = values[k];
        else ((uint16_t *)buffer)[part.first + i] = (uint16_t)values[k];
}

static size_t differing(enum type type, const void *buffer, struct part part) {
    uint32_t values[5];
    size_t wrong = 0;
    for (int k = 0; k < 5; k++) values[k] = encoded(type, element(part.rank, (part.from + (size_t)k)));
    for (size_t i = 0, k = 0; i < part.count; i++, k = k == 4 ? 0 : k + 1)
        if (type == FLOAT32) wrong += ((const uint32_t *)buffer)[part.first + i] != values[k];
        else wrong += ((const uint16_t *)buffer)[part.first + i] != (uint16_t)values[k];
    return wrong;
}

/* How many elements are sent and received for `count` of a call. */
static size_t sent(const struct library *library, const struct call *call) {
    enum collective which = call->collective;
    bool parts = which == REDUCE_SCATTER || which == ALL_TO_ALL || which == SCATTER;
    return parts ? call->count * (size_t)library->ranks : call->count;
}

static size_t received(const struct library *library, const struct call *call) {
    enum collective which = call->collective;
    bool parts = which == ALL_GATHER || which == ALL_TO_ALL || which == GATHER;
    return parts ? call->count * (size_t)library->ranks : call->count;
}

/* The rank whose elements would be the sum of everybody's. */
static int sum_of(int ranks) { return ranks * (ranks + 1) / 2 - 1; }

/* What is not a result is made to differ from it. */
static void fill(const struct library *library, const struct call *call) {
    size_t size = type_bytes[call->type];
    if (!call->in_place) memset(call->receive, 0xff, received(library, call) * size);
    if (call->collective == BROADCAST && library->rank != 0) memset(call->receive, 0xff, call->count * size);
    else put(call->type, (void *)call->send, (struct part){0, sent(library, call), library->rank, 0});
}

static size_t errors(const struct library *library, const struct call *call) {
    enum collective which = call->collective;
    size_t wrong = 0, count = call->count, mine = (size_t)library->rank * count;
    int sum = sum_of(library->ranks), before = (library->rank + library->ranks - 1) % library->ranks;
    /* Only the root has a result. */
    if (library->rank && (which == REDUCE || which == GATHER)) return 0;
    for (int peer = 0; peer < library->ranks; peer++) {
        struct part part = {(size_t)peer * count, count, peer, 0};
        bool one = which != ALL_GATHER && which != ALL_TO_ALL && which != GATHER;
        if (one) part = (struct part){0, count, sum, 0};
        if (which == BROADCAST || which == SCATTER) part.rank = 0;
        if (which == SEND_RECV) part.rank = before;
        if (which == ALL_TO_ALL || which == REDUCE_SCATTER || which == SCATTER) part.from = mine;
        wrong += differing(call->type, call->receive, part);
        if (one) break;
    }
    return wrong;
}

/* ---- buffers ---- */

/* As malloc gives it for large sizes, but aligned alike for all libraries, with pages of the usual size, and touched. */
static void *ordinary(size_t bytes) {
    const size_t alignment = 2u << 20;
    bytes = (bytes + alignment - 1) / alignment * alignment;
    void *buffer = aligned_alloc(alignment, bytes);
    if (!buffer) fail("no memory", "for a buffer");
    madvise(buffer, bytes, MADV_NOHUGEPAGE);
    return buffer;
}

static struct call place(const struct library *library, const struct cell *cell, char *first, char *second) {
    size_t elements = cell->bytes / type_bytes[cell->type], ranks = (size_t)library->ranks;
    enum collective which = cell->collective;
    bool whole = which == ALL_REDUCE || which == BROADCAST || which == REDUCE || which == SEND_RECV;
    size_t count = whole ? elements : elements / ranks;
    if (!count) count = 1;
    size_t part = (size_t)library->rank * count * type_bytes[cell->type];
    struct call call = {cell->collective, cell->type, first, second, count, cell->place == IN};
    if (cell->collective == BROADCAST) call.in_place = true;
    if (!call.in_place) return call;
    call.send = call.receive = first;
    if (cell->collective == ALL_GATHER) call.send = first + part;
    if (cell->collective == REDUCE_SCATTER && !library->scatters_to_start) call.receive = first + part;
    return call;
}

/* ---- time ---- */

static double batch(const struct library *library, const struct call *call, int calls) {
    library->barrier(library->context);
    double begin = now();
    for (int i = 0; i < calls; i++) library->make(library->context, call);
    return (now() - begin) / calls;
}

/* Warms up for a quarter of the time, at most 200 batches; how many calls fill a batch, and one call's time. */
static int settle(const struct library *library, const struct call *call, double seconds, double *estimate) {
    int calls = 1;
    double end = now() + seconds / 4;
    for (int round = 0; round < SETTLING_ROUNDS; round++) {
        double seen[2] = {batch(library, call, calls), 0};
        seen[1] = now() >= end;
        library->largest(library->context, seen, 2);
        *estimate = seen[0];
        double fitting = batch_seconds / seen[0] + 1;
        if (seen[0] * calls < batch_seconds) calls = fitting > 4 * calls + 8 ? 4 * calls + 8 : (int)fitting;
        else if (seen[0] > long_seconds || (round > 0 && seen[1] > 0)) break;
    }
    calls = *estimate < batch_seconds ? (int)(batch_seconds / *estimate) + 1 : 1;
    double agreed = calls;
    library->largest(library->context, &agreed, 1);
    return (int)agreed;
}

/* Fills `times` with those of batches, or of single calls; how many. */
static int timed(const struct library *library, const struct call *call, enum place place, double seconds,
                 double *times) {
    double estimate = 0;
    int calls = settle(library, call, seconds, &estimate);
    double wanted = seconds / (place == EACH ? estimate : estimate * calls);
    int least = estimate > long_seconds ? LEAST_LONG_BATCHES : LEAST_BATCHES;
    int count = wanted > MOST_TIMES ? MOST_TIMES : wanted < least ? least : (int)wanted;
    double agreed = count;
    library->largest(library->context, &agreed, 1);
    count = (int)agreed;
    if (place == EACH) {
        library->barrier(library->context);
        double begin = now();
        for (int i = 0; i < count; i++) {
            library->make(library->context, call);
            double end = now();
            times[i] = end - begin;
            begin = end;
        }
    } else
        for (int i = 0; i < count; i++) times[i] = batch(library, call, calls);
    for (int i = 0; i < count; i += 256) library->largest(library->context, times + i, count - i < 256 ? count - i : 256);
    return count;
}

/* Times a cell between two looks at the cores' distance, again if they have moved. */
static int watched(const struct library *library, const struct cell *cell, const struct call *call, double seconds,
                   struct watch *watch, double *times, bool *quiet) {
    int count = 0;
    for (int attempt = 0; attempt < TRIES; attempt++) {
        *quiet = watch_wait(watch);
        count = timed(library, call, cell->place, seconds, times);
        *quiet = watch_look(watch) && *quiet;
        if (*quiet || watch->left <= 0) break;
    }
    return count;
}

static void run(const struct library *library, const struct cell *cell, struct call *call, double seconds,
                struct watch *watch, double *times) {
    char name[128];
    snprintf(name, sizeof name, "%s\t%s\t%s\t%zu", collective_names[cell->collective], place_names[cell->place],
             type_names[cell->type], cell->bytes);
    if (library->prepare && !library->prepare(library->context, call)) {
        if (library->rank == 0) printf("unsupported\t%s\n", name);
        return;
    }
    fill(library, call);
    library->barrier(library->context);
    library->make(library->context, call);
    double wrong = (double)errors(library, call);
    library->largest(library->context, &wrong, 1);
    /* Sums in place grow with every call; of zeros they do not. */
    size_t size = type_bytes[call->type];
    memset((void *)call->send, 0, sent(library, call) * size);
    memset(call->receive, 0, received(library, call) * size);
    bool quiet;
    int count = watched(library, cell, call, seconds, watch, times, &quiet);
    if (library->release) library->release(library->context);
    if (library->rank) return;
    double middle = median(times, count) * 1e6, least = times[0] * 1e6, p99 = times[(size_t)count * 99 / 100] * 1e6;
    if (wrong > 0) printf("wrong\t%s\n", name);
    else printf("cell\t%s\t%.4f\t%.4f\t%.4f\t%s\n", name, middle, least, p99, quiet ? "quiet" : "noisy");
    fflush(stdout);
}

/* Calls for so long: the kernel needs some tenths of a second until it has spread new processes over the cores. */
static void warm_up(const struct library *library, double seconds) {
    double start = now(), spent;
    do {
        for (int i = 0; i < 100; i++) library->barrier(library->context);
        spent = now() - start;
        library->largest(library->context, &spent, 1);
    } while (spent < seconds);
}

void measure(struct library *library, int argc, char **argv) {
    double seconds = 0.1;
    bool own = false;
    size_t largest = 0, offset = 0;
    const char *where = NULL;
    for (int option; (option = getopt(argc, argv, "t:ao:pw:")) != -1;) {
        if (option == 't') seconds = atof(optarg);
        else if (option == 'a') own = true;
        else if (option == 'o') offset = (size_t)atol(optarg);
        else if (option == 'w') where = optarg;
        else if (option == 'p') {
            cpu_set_t core;
            CPU_ZERO(&core);
            CPU_SET((size_t)(library->rank % (int)sysconf(_SC_NPROCESSORS_ONLN)), &core);
            sched_setaffinity(0, sizeof core, &core);
        } else exit(2);
    }
    int count = argc - optind;
    struct cell *cells = calloc((size_t)count + 1, sizeof *cells);
    double *times = malloc(MOST_TIMES * sizeof *times);
    if (!cells || !times) fail("no memory", "for the cells");
    for (int i = 0; i < count; i++) {
        cells[i] = parse(argv[optind + i]);
        if (cells[i].bytes > largest) largest = cells[i].bytes;
    }
    /* An element for each rank at least, however small the cell. */
    if (largest < (size_t)library->ranks * sizeof(float)) largest = (size_t)library->ranks * sizeof(float);
    void *(*allocate)(size_t) = own && library->allocate ? library->allocate : ordinary;
    char *first = (char *)allocate(largest + offset) + offset, *second = (char *)allocate(largest + offset) + offset;
    memset(first, 0, largest);
    memset(second, 0, largest);
    struct watch watch = watch_open(where, library->rank, library->ranks);
    if (library->rank == 0) printf("version\t%s\n", library->version);
    warm_up(library, 0.3);
    for (int i = 0; i < count; i++) {
        struct call call = place(library, &cells[i], first, second);
        run(library, &cells[i], &call, seconds, &watch, times);
    }
    free(cells);
    free(times);
}

/* ---- ranks ---- */

int fork_ranks(int *argc, char ***argv, size_t shared_bytes,
               int (*rank_main)(int rank, int ranks, void *shared, int argc, char **argv)) {
    if (*argc < 3 || strcmp((*argv)[1], "-n")) fail("usage", "DRIVER -n RANKS [-t SECONDS] [-a] [-o BYTES] [-p] [-w LOW:HIGH:FILE] CELL...");
    int ranks = atoi((*argv)[2]), failed = 0, status;
    (*argv)[2] = (*argv)[0];
    *argc -= 2;
    *argv += 2;
    void *shared = mmap(NULL, shared_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) fail("no memory", "to share");
    for (int rank = 0; rank < ranks; rank++) {
        pid_t child = fork();
        if (child < 0) fail("cannot fork", "a rank");
        if (child) continue;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        int result = rank_main(rank, ranks, shared, *argc, *argv);
        fflush(stdout);
        _exit(result);
    }
    /* The others may wait for one that has failed; they end with this process. */
    while (!failed && wait(&status) > 0) failed = status != 0;
    return failed;
}
