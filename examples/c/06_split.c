/* 06: splitting a communicator: a grid of ranks, its rows and its columns.
 *
 * cclCommSplit is made by all ranks. Those that give the same colour become a new communicator, ordered by their keys;
 * who gives CCL_SPLIT_NOCOLOR gets none. The first communicator goes on to work.
 *
 *   cc 06_split.c $(pkg-config --cflags --libs rdmaccl) -pthread -o split && ./split
 */
#include <ccl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#define ROWS 2
#define COLUMNS 3
#define RANKS (ROWS * COLUMNS)

#define CHECK(call)                                                                                         \
    do {                                                                                                    \
        cclResult_t result_ = (call);                                                                       \
        if (result_ != cclSuccess) {                                                                        \
            fprintf(stderr, "%s: %s: %s\n", #call, cclGetErrorString(result_), cclGetLastError(NULL));      \
            exit(EXIT_FAILURE);                                                                             \
        }                                                                                                   \
    } while (0)

static void *run(void *argument) {
    cclComm_t grid = (cclComm_t)argument, row, column, first;
    int rank;
    CHECK(cclCommUserRank(grid, &rank));
    int y = rank / COLUMNS, x = rank % COLUMNS;

    CHECK(cclCommSplit(grid, y, x, &row, NULL));    /* my row: ordered by column */
    CHECK(cclCommSplit(grid, x, y, &column, NULL)); /* my column: ordered by row */

    /* The sum over the row, then over the column, is the sum over the grid. */
    long long mine = rank, in_row, in_grid, directly;
    CHECK(cclAllReduce(&mine, &in_row, 1, cclInt64, cclSum, row, NULL));
    CHECK(cclAllReduce(&in_row, &in_grid, 1, cclInt64, cclSum, column, NULL));
    CHECK(cclAllReduce(&mine, &directly, 1, cclInt64, cclSum, grid, NULL));
    if (in_grid != directly || directly != RANKS * (RANKS - 1) / 2) {
        fprintf(stderr, "rank %d: %lld by rows and columns, %lld directly\n", rank, in_grid, directly);
        exit(EXIT_FAILURE);
    }

    /* Only the first column goes on; the others take part in the split, and get NULL. */
    CHECK(cclCommSplit(grid, x == 0 ? 0 : CCL_SPLIT_NOCOLOR, rank, &first, NULL));
    if ((first == NULL) != (x != 0)) exit(EXIT_FAILURE);
    if (first != NULL) {
        int count;
        CHECK(cclCommCount(first, &count));
        if (count != ROWS) exit(EXIT_FAILURE);
        CHECK(cclCommDestroy(first));
    }
    printf("row %d, column %d: %lld in the row, %lld in the grid\n", y, x, in_row, in_grid);

    CHECK(cclCommDestroy(column));
    CHECK(cclCommDestroy(row));
    CHECK(cclCommDestroy(grid));
    return NULL;
}

int main(void) {
    cclComm_t comms[RANKS];
    pthread_t threads[RANKS];
    CHECK(cclCommInitAll(comms, RANKS, NULL));
    for (int r = 0; r < RANKS; r++)
        if (pthread_create(&threads[r], NULL, run, comms[r]) != 0) return EXIT_FAILURE;
    for (int r = 0; r < RANKS; r++) pthread_join(threads[r], NULL);
    return EXIT_SUCCESS;
}
