/* How the programs of ours begin: ranks that were forked meet in the memory that they share. */
#ifndef JOIN_H
#define JOIN_H
#include <ccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

struct meeting {
    volatile int ready;
    cclUniqueId id;
};

static cclComm_t comm;

static void check(cclResult_t result) {
    if (result == cclSuccess) return;
    fprintf(stderr, "%s: %s\n", cclGetErrorString(result), cclGetLastError(comm));
    exit(1);
}

/* `comm` is the communicator of all from here on. */
static void join(struct meeting *meeting, int rank, int ranks) {
    if (rank == 0) {
        check(cclGetUniqueId(&meeting->id));
        __sync_synchronize();
        meeting->ready = 1;
    }
    while (!meeting->ready) usleep(200);
    __sync_synchronize();
    check(cclCommInitRank(&comm, ranks, meeting->id, rank));
}
#endif
