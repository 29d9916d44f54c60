/* 09: four processes, of which one is killed; the others go on without it.
 *
 * A death ends the calls of all ranks within moments, with an error that names who died. cclCommShrink then agrees with
 * those who are left on who that is, and makes a communicator of them.
 *
 *   cc 09_survive_a_death.c $(pkg-config --cflags --libs rdmaccl) -o survive && ./survive
 */
#define _POSIX_C_SOURCE 200809L
#include <ccl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define RANKS 4
#define VICTIM 2
#define STEPS 20
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
    float values[COUNT];
    int size = RANKS, step = 0;

    CHECK(cclCommInitRank(&comm, RANKS, id, rank));
    while (step < STEPS) {
        /* Every step begins from what is known, so that one that failed can be made again. */
        for (int i = 0; i < COUNT; i++) values[i] = 1.0f;
        if (rank == VICTIM && step == STEPS / 2) raise(SIGKILL);

        cclResult_t result = cclAllReduce(values, values, COUNT, cclFloat32, cclSum, comm, NULL);

        /* Some ranks may have their result of a step in which others have an error, so all agree on how it went: the
         * and of all flags. An agreement works when the communicator does not any more. */
        uint64_t good = result == cclSuccess;
        CHECK(cclCommAgree(comm, &good));
        if (good) {
            for (int i = 0; i < COUNT; i++)
                if (values[i] != (float)size) {
                    fprintf(stderr, "rank %d has %g in element %d\n", rank, (double)values[i], i);
                    exit(EXIT_FAILURE);
                }
            step++;
            continue;
        }
        printf("rank %d: step %d: %s\n", rank, step, cclGetLastError(comm));

        /* All come here together, since they decide by what they agreed on. The list of ranks to exclude is for
         * those who live: the dead are found out. */
        cclComm_t smaller;
        CHECK(cclCommShrink(comm, NULL, 0, &smaller, NULL, CCL_SHRINK_ABORT));
        CHECK(cclCommDestroy(comm));
        comm = smaller;
        CHECK(cclCommCount(comm, &size));
    }
    printf("rank %d: %d steps, the last with %d ranks\n", rank, step, size);
    CHECK(cclCommDestroy(comm));
    exit(size == RANKS - 1 ? EXIT_SUCCESS : EXIT_FAILURE);
}

int main(void) {
    int ends[2], status, survivors = 0, killed = 0;
    if (pipe(ends) != 0) return EXIT_FAILURE;

    for (int rank = 0; rank < RANKS; rank++) {
        pid_t child = fork();
        if (child < 0) return EXIT_FAILURE;
        if (child > 0) continue;
        cclUniqueId id;
        if (rank == 0) {
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
    while (wait(&status) > 0) {
        survivors += WIFEXITED(status) && WEXITSTATUS(status) == EXIT_SUCCESS;
        killed += WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    }
    printf("%d was killed, %d went on\n", killed, survivors);
    return killed == 1 && survivors == RANKS - 1 ? EXIT_SUCCESS : EXIT_FAILURE;
}
