/* 02: four processes, one rank each.
 *
 * Ranks find each other by a unique id: 128 bytes that one of them makes and all are given, by any means. Here they
 * are children of one process, and the id goes through a pipe.
 *
 *   cc 02_processes.c $(pkg-config --cflags --libs rdmaccl) -o processes && ./processes
 */
#define _POSIX_C_SOURCE 200809L
#include <ccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

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

static void run(int rank, cclUniqueId id) {
    cclComm_t comm;
    int block[COUNT], all[RANKS * COUNT];

    /* Returns when all four have come, or with the list of those who have not. */
    CHECK(cclCommInitRank(&comm, RANKS, id, rank));

    /* Everybody gets everybody's block, in the order of the ranks. */
    for (int i = 0; i < COUNT; i++) block[i] = rank * COUNT + i;
    CHECK(cclAllGather(block, all, COUNT, cclInt32, comm, NULL));
    for (int i = 0; i < RANKS * COUNT; i++)
        if (all[i] != i) {
            fprintf(stderr, "rank %d has %d at %d\n", rank, all[i], i);
            exit(EXIT_FAILURE);
        }

    /* Rank 0 tells the others a number. In place: each rank gives one buffer for both. */
    int answer = rank == 0 ? 42 : 0;
    CHECK(cclBroadcast(&answer, &answer, 1, cclInt32, 0, comm, NULL));
    printf("rank %d of %d: gathered %d numbers, was told %d\n", rank, RANKS, RANKS * COUNT, answer);

    /* All ranks leave together; a process that just ends counts as dead for the others. */
    CHECK(cclCommDestroy(comm));
    exit(answer == 42 ? EXIT_SUCCESS : EXIT_FAILURE);
}

int main(void) {
    int ends[2], status, failed = 0;
    if (pipe(ends) != 0) return EXIT_FAILURE;

    for (int rank = 0; rank < RANKS; rank++) {
        pid_t child = fork();
        if (child < 0) return EXIT_FAILURE;
        if (child > 0) continue;
        cclUniqueId id;
        if (rank == 0) {
            /* The process that makes the id is where the ranks meet, so a rank makes it and not the parent. */
            CHECK(cclGetUniqueId(&id));
            for (int other = 1; other < RANKS; other++)
                if (write(ends[1], &id, sizeof id) != sizeof id) exit(EXIT_FAILURE);
        } else {
            close(ends[1]); /* so that the pipe ends if rank 0 does */
            if (read(ends[0], &id, sizeof id) != sizeof id) exit(EXIT_FAILURE);
        }
        run(rank, id);
    }
    close(ends[0]);
    close(ends[1]);
    while (wait(&status) > 0) failed |= status != 0;
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
