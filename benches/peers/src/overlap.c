/* What an all-reduce on a host stream costs the thread that computes meanwhile. Two ranks, 64 MiB of float32 in
 * ordinary memory; the computation stays in registers and is repeated until the all-reduce is over. Prints for each
 * arrangement, separated by tabs: its name, computation per microsecond alone, and beside the all-reduce, and
 * microseconds of the all-reduce alone (nothing else runs) and beside the computation. Medians over rounds, rank 0.
 *     spare    rank 0 computes on core 0; both streams' threads have the other cores to themselves
 *     shared   the same, but the kernel places all threads as it likes
 *     busy     both ranks compute, on all cores; no core is free */
#define _GNU_SOURCE
#include "core.h"
#include "join.h"
#include "timing.h"
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { COUNT = 16 << 20, ROUNDS = 15, STEP = 2000 };
enum arrangement { SPARE, SHARED, BUSY, ARRANGEMENTS };
static const char *const names[ARRANGEMENTS] = {"spare", "shared", "busy"};

static double microseconds(void) { return now() * 1e6; }

/* The calling thread, and those that it creates, run on cores from `first` up to and without `end`. */
static void stay(int first, int end) {
    cpu_set_t set;
    CPU_ZERO(&set);
    for (int core = first; core < end; core++) CPU_SET((size_t)core, &set);
    sched_setaffinity(0, sizeof set, &set);
}

static volatile double result;
static void compute(void) {
    double x = result + 1, y = 0.5;
    for (int i = 0; i < STEP; i++) {
        x = x * 0.999999 + y;
        y = y * 0.999998 + 1e-9;
    }
    result = x;
}

static void arrange(enum arrangement arrangement, int rank, const float *send, float *receive) {
    int cores = (int)sysconf(_SC_NPROCESSORS_ONLN);
    bool computes = rank == 0 || arrangement == BUSY;
    double alone[ROUNDS], beside[ROUNDS], quiet[ROUNDS], loaded[ROUNDS];
    cclStream_t stream;
    stay(arrangement == SPARE ? 1 : 0, cores);
    check(cclHostStreamCreate(&stream));
    if (arrangement == SPARE && rank == 0) stay(0, 1);
    for (int round = -1; round < ROUNDS; round++) { /* the first is for warming up */
        int at = round < 0 ? 0 : round;
        check(cclBarrier(comm, NULL));
        double begin = microseconds();
        check(cclAllReduce(send, receive, COUNT, cclFloat32, cclSum, comm, stream));
        check(cclHostStreamSynchronize(stream));
        quiet[at] = microseconds() - begin;
        check(cclBarrier(comm, NULL));
        /* As long as the all-reduce, so that what the machine does meanwhile weighs alike. */
        long steps = 0;
        begin = microseconds();
        while (computes && microseconds() - begin < quiet[at]) {
            compute();
            steps++;
        }
        alone[at] = (double)steps / (microseconds() - begin);
        check(cclBarrier(comm, NULL));
        begin = microseconds();
        check(cclAllReduce(send, receive, COUNT, cclFloat32, cclSum, comm, stream));
        for (steps = 0; computes && cclHostStreamQuery(stream) == cclInProgress; steps++) compute();
        beside[at] = (double)steps / (microseconds() - begin);
        check(cclHostStreamSynchronize(stream));
        loaded[at] = microseconds() - begin;
    }
    check(cclHostStreamDestroy(stream));
    if (rank == 0)
        printf("%s\t%.5f\t%.5f\t%.1f\t%.1f\n", names[arrangement], median(alone, ROUNDS), median(beside, ROUNDS), median(quiet, ROUNDS),
               median(loaded, ROUNDS));
}

static int rank_main(int rank, int ranks, void *shared, int argc, char **argv) {
    (void)argc, (void)argv;
    join(shared, rank, ranks);
    float *send = malloc(COUNT * sizeof(float)), *receive = malloc(COUNT * sizeof(float));
    if (!send || !receive) exit(1);
    memset(send, 0, COUNT * sizeof(float));
    memset(receive, 0, COUNT * sizeof(float));
    for (int i = 0; i < ARRANGEMENTS; i++) arrange((enum arrangement)i, rank, send, receive);
    for (size_t i = 0; i < COUNT; i++)
        if (receive[i] != 0) return 1;
    free(send);
    free(receive);
    check(cclCommDestroy(comm));
    return 0;
}

int main(int argc, char **argv) { return fork_ranks(&argc, &argv, sizeof(struct meeting), rank_main); }
