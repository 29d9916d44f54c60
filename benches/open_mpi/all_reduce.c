/* One benchmark, two libraries: compiled by mpicc with -DUSE_MPI, or against librdmaccl. Two or more ranks, float32
 * sum, out of place. For each size: one verified call, then batches of calls with a barrier before each; printed is the
 * median over batches of the time per call on the slowest rank, in microseconds. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int rank_, ranks_;

#ifdef USE_MPI
#include <mpi.h>
static void start(int *argc, char ***argv) {
    MPI_Init(argc, argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks_);
}
static void sum(const float *send, float *recv, size_t count) {
    MPI_Allreduce(send, recv, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}
static void slowest(double *value) { MPI_Allreduce(MPI_IN_PLACE, value, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD); }
static void barrier(void) { MPI_Barrier(MPI_COMM_WORLD); }
static void stop(void) { MPI_Finalize(); }
#else
#include <ccl.h>
#include <sys/mman.h>
#include <sys/wait.h>
static cclComm_t comm;
static void check(cclResult_t result) {
    if (result == cclSuccess) return;
    fprintf(stderr, "rank %d: %s: %s\n", rank_, cclGetErrorString(result), cclGetLastError(comm));
    exit(1);
}
/* The first argument is the number of ranks; each is a child of this process. */
static void start(int *argc, char ***argv) {
    struct { volatile int ready; cclUniqueId id; } *shared;
    int status, failed = 0;
    ranks_ = *argc > 1 ? atoi((*argv)[1]) : 2;
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (rank_ = 0; rank_ < ranks_; rank_++)
        if (fork() == 0) {
            if (rank_ == 0) { check(cclGetUniqueId(&shared->id)); __sync_synchronize(); shared->ready = 1; }
            else while (!shared->ready) usleep(200);
            check(cclCommInitRank(&comm, ranks_, shared->id, rank_));
            return;
        }
    while (wait(&status) > 0) failed |= status != 0;
    exit(failed);
}
static void sum(const float *send, float *recv, size_t count) {
    check(cclAllReduce(send, recv, count, cclFloat32, cclSum, comm, NULL));
}
static void slowest(double *value) { check(cclAllReduce(value, value, 1, cclFloat64, cclMax, comm, NULL)); }
static void barrier(void) { check(cclBarrier(comm, NULL)); }
static void stop(void) { check(cclCommDestroy(comm)); }
#endif

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e6 + t.tv_nsec * 1e-3;
}

static double batch(const float *send, float *recv, size_t count, int calls) {
    double begin, each;
    barrier();
    begin = now();
    for (int i = 0; i < calls; i++) sum(send, recv, count);
    each = (now() - begin) / calls;
    slowest(&each);
    return each;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    enum { BATCHES = 41 };
    size_t sizes[] = {8, 1024, 8192, 32768, 262144, 1048576, 4194304, 16777216, 67108864};
    size_t largest = sizes[sizeof sizes / sizeof *sizes - 1];
    double times[BATCHES];
    float *send, *recv;
    start(&argc, &argv);
    if (ranks_ <= sysconf(_SC_NPROCESSORS_ONLN)) { /* a core for each */
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(rank_, &one);
        sched_setaffinity(0, sizeof one, &one);
    }
    send = aligned_alloc(2 << 20, largest);
    recv = aligned_alloc(2 << 20, largest);
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        size_t count = sizes[s] / sizeof(float);
        double wrong = 0, first;
        int calls;
        for (size_t i = 0; i < count; i++) { send[i] = (float)((rank_ + 1) * (1 + i % 13)); recv[i] = -1; }
        sum(send, recv, count);
        for (size_t i = 0; i < count; i++) wrong += recv[i] != (float)(ranks_ * (ranks_ + 1) / 2 * (1 + i % 13));
        slowest(&wrong);
        batch(send, recv, count, 20);
        first = batch(send, recv, count, 3);
        calls = first > 1000 ? 1 : (int)(1000 / first) + 1; /* a batch lasts a millisecond or one call */
        for (int b = 0; b < BATCHES; b++) times[b] = batch(send, recv, count, calls);
        qsort(times, BATCHES, sizeof *times, ascending);
        if (rank_ == 0) printf("%zu %.3f %s\n", sizes[s], times[BATCHES / 2], wrong > 0 ? "WRONG" : "ok");
        if (wrong > 0) return 1;
    }
    stop();
    return 0;
}
