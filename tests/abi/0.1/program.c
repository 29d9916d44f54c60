/* A program of release 0.1: compiled against the header beside it, which is never changed, and run with today's
 * library. It uses what a library could break without the compiler noticing: structs that grow, numbers of enumerators,
 * handles, argument orders. Exit status 0: nothing has. */
#include <ccl.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RANKS 3
#define COUNT 1001

#define EXPECT(what)                                                                                        \
    do {                                                                                                    \
        if (!(what)) {                                                                                      \
            fprintf(stderr, "line %d: not so: %s (%s)\n", __LINE__, #what, cclGetLastError(NULL));          \
            exit(EXIT_FAILURE);                                                                             \
        }                                                                                                   \
    } while (0)
#define OK(call) EXPECT((call) == cclSuccess)

static cclUniqueId id;

/* Memory that an older struct does not have: a library that wrote or read there would be found out. */
struct with_guard {
    cclConfig_t config;
    unsigned char guard[256];
};

static void collectives(cclComm_t comm, int rank, cclStream_t stream) {
    static const cclDataType_t types[] = {cclInt8,  cclUint8,   cclInt32,   cclUint32,  cclInt64,      cclUint64,
                                          cclInt16, cclUint16,  cclFloat16, cclFloat32, cclFloat64,    cclBfloat16,
                                          cclFloat8e4m3, cclFloat8e5m2};
    static const size_t bytes[] = {1, 1, 4, 4, 8, 8, 2, 2, 2, 4, 8, 2, 1, 1};
    unsigned char *one = calloc(COUNT, 8), *all = calloc(RANKS * COUNT, 8);
    EXPECT(one && all);
    /* A type's length shows in where the blocks come to lie. */
    for (size_t t = 0; t < sizeof types / sizeof types[0]; t++) {
        memset(one, rank + 1, COUNT * bytes[t]);
        memset(all, 0, RANKS * COUNT * 8);
        OK(cclAllGather(one, all, COUNT, types[t], comm, stream));
        if (stream) OK(cclHostStreamSynchronize(stream));
        for (size_t i = 0; i < RANKS * COUNT * 8; i++) {
            size_t block = i / (COUNT * bytes[t]);
            EXPECT(all[i] == (block < RANKS ? block + 1 : 0));
        }
    }
    free(one);
    free(all);

    double mine = rank + 2, got;
    static const struct { cclRedOp_t op; double result; } ops[] = {
        {cclSum, 9}, {cclProd, 24}, {cclMax, 4}, {cclMin, 2}, {cclAvg, 3}};
    for (size_t o = 0; o < sizeof ops / sizeof ops[0]; o++) {
        OK(cclAllReduce(&mine, &got, 1, cclFloat64, ops[o].op, comm, stream));
        if (stream) OK(cclHostStreamWait(stream, 60000));
        EXPECT(got == ops[o].result);
    }
    int32_t number = 1 << rank, told = rank == 1 ? 77 : 0;
    OK(cclReduce(&number, &number, 1, cclInt32, cclSum, 2, comm, NULL));
    EXPECT(rank != 2 || number == 7);
    OK(cclBroadcast(&told, &told, 1, cclInt32, 1, comm, NULL));
    EXPECT(told == 77);

    int32_t to = 100 + rank, from = 0;
    OK(cclGroupStart());
    OK(cclSend(&to, 1, cclInt32, (rank + 1) % RANKS, comm, stream));
    OK(cclRecv(&from, 1, cclInt32, (rank + RANKS - 1) % RANKS, comm, stream));
    OK(cclGroupEnd());
    if (stream) OK(cclHostStreamSynchronize(stream));
    EXPECT(from == 100 + (rank + RANKS - 1) % RANKS);
}

static void *run(void *argument) {
    int rank = (int)(size_t)argument, value;
    cclComm_t comm = NULL, part = NULL;
    cclStream_t stream = NULL;
    cclResult_t state = cclInternalError;
    struct with_guard settings = {CCL_CONFIG_INITIALIZER, {0}};
    memset(settings.guard, 0xa5, sizeof settings.guard);
    settings.config.blocking = 1;

    OK(cclCommInitRankConfig(&comm, RANKS, id, rank, &settings.config));
    for (size_t i = 0; i < sizeof settings.guard; i++) EXPECT(settings.guard[i] == 0xa5);
    OK(cclCommCount(comm, &value));
    EXPECT(value == RANKS);
    OK(cclCommUserRank(comm, &value));
    EXPECT(value == rank);
    OK(cclHostStreamCreate(&stream));
    collectives(comm, rank, NULL);
    collectives(comm, rank, stream);

    /* A header older still, which knew nothing behind its first field: the library must not look further. */
    cclConfig_t older = CCL_CONFIG_INITIALIZER;
    older.size = offsetof(cclConfig_t, blocking) + sizeof older.blocking;
    memset((char *)&older + older.size, 0xa5, sizeof older - older.size);
    OK(cclCommSplit(comm, rank == 0 ? CCL_SPLIT_NOCOLOR : 1, -rank, &part, &older));
    EXPECT((part == NULL) == (rank == 0));
    if (part) {
        OK(cclCommUserRank(part, &value));
        EXPECT(value == RANKS - 1 - rank);
        OK(cclCommDestroy(part));
    }
    /* And one that is not initialised. */
    cclConfig_t wrong = CCL_CONFIG_INITIALIZER;
    wrong.magic = 0;
    EXPECT(cclCommSplit(comm, 0, 0, &part, &wrong) == cclInvalidArgument);

    OK(cclCommGetAsyncError(comm, &state));
    EXPECT(state == cclSuccess);
    OK(cclHostStreamDestroy(stream));
    OK(cclCommFinalize(comm));
    OK(cclCommDestroy(comm));
    EXPECT(cclCommDestroy(comm) == cclInvalidArgument);
    return NULL;
}

int main(void) {
    pthread_t threads[RANKS];
    int version = 0;
    OK(cclGetVersion(&version));
    EXPECT(version >= 100);
    EXPECT(sizeof id == 128);
    OK(cclGetUniqueId(&id));
    for (size_t rank = 0; rank < RANKS; rank++)
        EXPECT(pthread_create(&threads[rank], NULL, run, (void *)rank) == 0);
    for (int rank = 0; rank < RANKS; rank++) EXPECT(pthread_join(threads[rank], NULL) == 0);
    printf("a program of release 0.1 with library %d\n", version);
    return EXIT_SUCCESS;
}
