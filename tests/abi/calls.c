/* Uses the C ABI as a program does: four ranks as processes, every collective, and every kind of misuse that
 * must come back as a code. Exit status 0: all as it should be. */
#define _GNU_SOURCE
#include <ccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define N 4
#define COUNT 1001

static int rank_;

#define EXPECT(call, code)                                                                                  \
    do {                                                                                                    \
        cclResult_t got_ = (call);                                                                          \
        if (got_ != (code)) {                                                                               \
            fprintf(stderr, "rank %d, line %d: %s gave %d (%s: %s)\n", rank_, __LINE__, #call, (int)got_,   \
                    cclGetErrorString(got_), cclGetLastError(NULL));                                        \
            exit(1);                                                                                        \
        }                                                                                                   \
    } while (0)
#define OK(call) EXPECT(call, cclSuccess)
#define SAME(got, want)                                                                                     \
    do {                                                                                                    \
        if ((got) != (want)) {                                                                              \
            fprintf(stderr, "rank %d, line %d: %g is not %g\n", rank_, __LINE__, (double)(got), (double)(want)); \
            exit(1);                                                                                        \
        }                                                                                                   \
    } while (0)

static float value(int rank, int i) { return (float)((rank + 1) * (1 + i % 13)); }
static float sum(int i) { return (float)(N * (N + 1) / 2 * (1 + i % 13)); }

static void collectives(cclComm_t comm) {
    static float send[N * COUNT], recv[N * COUNT];
    int i, r, all = N * COUNT;
    for (i = 0; i < all; i++) send[i] = value(rank_, i);

    OK(cclAllReduce(send, recv, COUNT, cclFloat32, cclSum, comm, NULL));
    for (i = 0; i < COUNT; i++) SAME(recv[i], sum(i));
    memcpy(recv, send, COUNT * sizeof(float));
    OK(cclAllReduce(recv, recv, COUNT, cclFloat, cclSum, comm, NULL));
    for (i = 0; i < COUNT; i++) SAME(recv[i], sum(i));
    OK(cclReduce(send, recv, COUNT, cclFloat32, cclMax, 2, comm, NULL));
    if (rank_ == 2) for (i = 0; i < COUNT; i++) SAME(recv[i], value(N - 1, i));
    OK(cclBroadcast(send, recv, COUNT, cclFloat32, 1, comm, NULL));
    for (i = 0; i < COUNT; i++) SAME(recv[i], value(1, i));
    OK(cclAllGather(send, recv, COUNT, cclFloat32, comm, NULL));
    for (r = 0; r < N; r++) for (i = 0; i < COUNT; i++) SAME(recv[r * COUNT + i], value(r, i));
    OK(cclReduceScatter(send, recv, COUNT, cclFloat32, cclSum, comm, NULL));
    for (i = 0; i < COUNT; i++) SAME(recv[i], sum(rank_ * COUNT + i));
    OK(cclAlltoAll(send, recv, COUNT, cclFloat32, comm, NULL));
    for (r = 0; r < N; r++) for (i = 0; i < COUNT; i++) SAME(recv[r * COUNT + i], value(r, rank_ * COUNT + i));
    OK(cclGather(send, recv, COUNT, cclFloat32, 3, comm, NULL));
    if (rank_ == 3) for (r = 0; r < N; r++) for (i = 0; i < COUNT; i++) SAME(recv[r * COUNT + i], value(r, i));
    OK(cclScatter(send, recv, COUNT, cclFloat32, 0, comm, NULL));
    for (i = 0; i < COUNT; i++) SAME(recv[i], value(0, rank_ * COUNT + i));
    OK(cclBarrier(comm, NULL));
}

static void misuse(cclComm_t comm) {
    static float buffer[2 * COUNT];
    int number;
    EXPECT(cclAllReduce(NULL, buffer, COUNT, cclFloat32, cclSum, comm, NULL), cclInvalidArgument);
    EXPECT(cclAllReduce(buffer, NULL, COUNT, cclFloat32, cclSum, comm, NULL), cclInvalidArgument);
    EXPECT(cclAllReduce(buffer, buffer + 1, COUNT, cclFloat32, cclSum, comm, NULL), cclInvalidArgument);
    EXPECT(cclAllReduce(buffer, buffer, COUNT, (cclDataType_t)99, cclSum, comm, NULL), cclInvalidArgument);
    EXPECT(cclAllReduce(buffer, buffer, COUNT, cclFloat32, (cclRedOp_t)-1, comm, NULL), cclInvalidArgument);
    EXPECT(cclAllReduce(buffer, buffer, (size_t)-1, cclFloat32, cclSum, comm, NULL), cclInvalidArgument);
    EXPECT(cclAllReduce(buffer, buffer, COUNT, cclFloat32, cclSum, comm, (cclStream_t)(void *)buffer), cclInvalidArgument);
    EXPECT(cclBroadcast(buffer, buffer, COUNT, cclFloat32, N, comm, NULL), cclInvalidArgument);
    EXPECT(cclBroadcast(buffer, buffer, COUNT, cclFloat32, -1, comm, NULL), cclInvalidArgument);
    if (!strstr(cclGetLastError(comm), "root -1")) { fprintf(stderr, "last error: %s\n", cclGetLastError(comm)); exit(1); }
    EXPECT(cclBarrier(NULL, NULL), cclInvalidArgument);
    EXPECT(cclBarrier((cclComm_t)(void *)buffer, NULL), cclInvalidArgument);
    EXPECT(cclCommCount(comm, NULL), cclInvalidArgument);
    EXPECT(cclGetVersion(NULL), cclInvalidArgument);
    EXPECT(cclGetUniqueId(NULL), cclInvalidArgument);
    OK(cclCommCount(comm, &number));
    SAME(number, N);
    OK(cclCommUserRank(comm, &number));
    SAME(number, rank_);
}

static void memory(void) {
    void *at;
    OK(cclMemAlloc(&at, 5000000));
    memset(at, 7, 5000000);
    OK(cclMemFree(at));
    EXPECT(cclMemFree(at), cclInvalidArgument);
    OK(cclMemFree(NULL));
    EXPECT(cclMemAlloc(NULL, 1), cclInvalidArgument);
    EXPECT(cclMemAlloc(&at, (size_t)-1), cclInvalidArgument);
}

int main(void) {
    struct { volatile int ready; cclUniqueId id; } *shared;
    cclComm_t comm;
    int r, status, failed = 0, version;
    cclUniqueId zeros;

    OK(cclGetVersion(&version));
    memset(&zeros, 0, sizeof zeros);
    EXPECT(cclCommInitRank(&comm, 2, zeros, 0), cclInvalidArgument);
    EXPECT(cclCommInitRank(NULL, 2, zeros, 0), cclInvalidArgument);
    EXPECT(cclCommInitRank(&comm, 2, zeros, 2), cclInvalidArgument);
    memory();

    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (r = 0; r < N; r++)
        if (fork() == 0) {
            rank_ = r;
            alarm(60);
            if (r == 0) { OK(cclGetUniqueId(&shared->id)); __sync_synchronize(); shared->ready = 1; }
            else while (!shared->ready) usleep(1000);
            OK(cclCommInitRank(&comm, N, shared->id, r));
            collectives(comm);
            misuse(comm);
            collectives(comm); /* what was refused has broken nothing */
            OK(cclCommDestroy(comm));
            EXPECT(cclCommDestroy(comm), cclInvalidArgument);
            EXPECT(cclBarrier(comm, NULL), cclInvalidArgument);
            exit(0);
        }
    while (wait(&status) > 0) failed |= status != 0;
    return failed;
}
