/* What every library is measured with. A driver describes its library in a `library`; the core parses the command line,
 * checks the data of each cell once, times it, and prints it.
 *
 * Command line: [-t SECONDS] [-a] [-o BYTES] [-p] [-w LOW:HIGH:FILE] CELL..., with the driver's own options before.
 *   CELL  collective:place:type:bytes, like all_reduce:out:float32:1048576; the place is out, in, or each
 *   -t    seconds to measure each cell for
 *   -a    buffers from the library's own allocator
 *   -o    buffers begin so many bytes after the beginning of a page; whole elements
 *   -p    pin rank r to core r
 *   -w    measure a cell when a cache line takes LOW to HIGH nanoseconds from a core to another, and again if that has
 *         changed by its end; FILE has a page of zeros, where the ranks meet
 *
 * What a cell's bytes are: all_reduce, broadcast, reduce and send_recv, the buffer; all_gather and gather, all that a rank
 * receives; reduce_scatter, all_to_all and scatter, all that a rank sends.
 *
 * `out` and `in` place: calls back to back fill batches of at least a millisecond, with a barrier before each; a batch's
 * time is that of the slowest rank. `each`: out of place, every call timed by itself, without a barrier between them. */
#ifndef CORE_H
#define CORE_H

#include <stdbool.h>
#include <stddef.h>

enum collective {
    ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, BROADCAST, ALL_TO_ALL,
    /* Out of place only. The root of all is rank 0; `SEND_RECV` sends to the next rank and receives from the one before. */
    REDUCE, GATHER, SCATTER, SEND_RECV,
    COLLECTIVES
};
enum type { FLOAT32, FLOAT16, BFLOAT16, TYPES };

/* One call. `count` is what a rank contributes: of gathers what it sends, of scatters what it receives, of an
 * all-to-all what it sends to each rank, else the whole buffer. In place, `send` and `receive` lie as NCCL has it, but see
 * `scatters_to_start`; a broadcast is always in place. */
struct call {
    enum collective collective;
    enum type type;
    const void *send;
    void *receive;
    size_t count;
    bool in_place;
};

struct library {
    const char *version;
    int rank, ranks;
    /* MPI: the result of a reduce-scatter in place lies at the start of the buffer, not in the rank's part of it. */
    bool scatters_to_start;
    void *context;
    /* Told of a call that will be made often; whether the library can make it. May be NULL. */
    bool (*prepare)(void *context, const struct call *call);
    void (*make)(void *context, const struct call *call);
    /* After the last call that was prepared. May be NULL. */
    void (*release)(void *context);
    void (*barrier)(void *context);
    /* Each value becomes the largest of all ranks. */
    void (*largest)(void *context, double *values, int count);
    /* For -a; it does not return NULL. */
    void *(*allocate)(size_t bytes);
};

#ifdef __cplusplus
extern "C" {
#endif

/* Measures the cells of the command line and prints on rank 0, separated by tabs:
 *     version TEXT
 *     cell COLLECTIVE PLACE TYPE BYTES MEDIAN LEAST P99 quiet|noisy
 *     wrong|unsupported COLLECTIVE PLACE TYPE BYTES
 * Times are microseconds per call, over batches; of `each`, over calls. */
void measure(struct library *library, int argc, char **argv);

/* Takes "-n N" from the front of the arguments and runs `rank_main` in N child processes, which share `shared_bytes`
 * of zeroed memory. The exit status for the parent. */
int fork_ranks(int *argc, char ***argv, size_t shared_bytes,
               int (*rank_main)(int rank, int ranks, void *shared, int argc, char **argv));

#ifdef __cplusplus
}
#endif
#endif
