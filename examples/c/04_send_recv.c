/* 04: sends and receives: a ring, and everybody to everybody.
 *
 * A send alone returns when its peer has taken it. If every rank first sent and then received, all would wait. In a
 * group the sends and receives start together and end together, so their order does not matter, and any pattern works
 * in which every send has its receive.
 *
 *   cc 04_send_recv.c $(pkg-config --cflags --libs rdmaccl) -pthread -o send_recv && ./send_recv
 */
#include <ccl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#define RANKS 4
#define COUNT 1000

#define CHECK(call)                                                                                         \
    do {                                                                                                    \
        cclResult_t result_ = (call);                                                                       \
        if (result_ != cclSuccess) {                                                                        \
            fprintf(stderr, "%s: %s: %s\n", #call, cclGetErrorString(result_), cclGetLastError(NULL));      \
            exit(EXIT_FAILURE);                                                                             \
        }                                                                                                   \
    } while (0)

static cclComm_t comms[RANKS];

/* To the right neighbour, from the left one. */
static void ring(cclComm_t comm, int rank, int size) {
    double mine[COUNT], left[COUNT];
    int to = (rank + 1) % size, from = (rank + size - 1) % size;
    for (int i = 0; i < COUNT; i++) mine[i] = rank + i;

    CHECK(cclGroupStart());
    CHECK(cclSend(mine, COUNT, cclFloat64, to, comm, NULL));
    CHECK(cclRecv(left, COUNT, cclFloat64, from, comm, NULL));
    CHECK(cclGroupEnd());

    for (int i = 0; i < COUNT; i++)
        if (left[i] != from + i) {
            fprintf(stderr, "ring: rank %d has %g at %d\n", rank, left[i], i);
            exit(EXIT_FAILURE);
        }
}

/* Block j of `send` goes to rank j, and the blocks differ in length: rank r gets r + 1 elements from everybody.
 * (Blocks of one length are cclAlltoAll; this is cclAlltoAllv, written out.) */
static void all_to_all(cclComm_t comm, int rank, int size) {
    int send[RANKS][RANKS], recv[RANKS][RANKS];
    for (int to = 0; to < size; to++)
        for (int i = 0; i <= to; i++) send[to][i] = 100 * rank + 10 * to + i;

    CHECK(cclGroupStart());
    for (int peer = 0; peer < size; peer++) { /* oneself included */
        CHECK(cclSend(send[peer], (size_t)peer + 1, cclInt32, peer, comm, NULL));
        CHECK(cclRecv(recv[peer], (size_t)rank + 1, cclInt32, peer, comm, NULL));
    }
    CHECK(cclGroupEnd());

    for (int from = 0; from < size; from++)
        for (int i = 0; i <= rank; i++)
            if (recv[from][i] != 100 * from + 10 * rank + i) {
                fprintf(stderr, "all to all: rank %d has %d from rank %d\n", rank, recv[from][i], from);
                exit(EXIT_FAILURE);
            }
}

static void *run(void *comm) {
    int rank, size;
    CHECK(cclCommUserRank((cclComm_t)comm, &rank));
    CHECK(cclCommCount((cclComm_t)comm, &size));
    ring((cclComm_t)comm, rank, size);
    all_to_all((cclComm_t)comm, rank, size);
    CHECK(cclCommDestroy((cclComm_t)comm));
    printf("rank %d: the ring and the all-to-all are right\n", rank);
    return NULL;
}

int main(void) {
    pthread_t threads[RANKS];
    CHECK(cclCommInitAll(comms, RANKS, NULL));
    /* Here each rank has a thread of its own. */
    for (int r = 0; r < RANKS; r++)
        if (pthread_create(&threads[r], NULL, run, comms[r]) != 0) return EXIT_FAILURE;
    for (int r = 0; r < RANKS; r++) pthread_join(threads[r], NULL);
    return EXIT_SUCCESS;
}
