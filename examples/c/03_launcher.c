/* 03: one rank of a job that a launcher starts: torchrun, mpirun, srun, or a shell.
 *
 * The launcher tells each process its rank and their number by environment variables. The unique id goes through a
 * file that all ranks can see; a program that has MPI or sockets anyway would broadcast it by those. With the address
 * of rank 0 in RDMACCL_ROOT nothing has to be brought: each rank makes the same id, on however many hosts they are.
 *
 *   cc 03_launcher.c $(pkg-config --cflags --libs rdmaccl) -o launcher
 *   mpirun -n 4 ./launcher /tmp/job.id
 *   for r in 0 1 2 3; do RANK=$r WORLD_SIZE=4 ./launcher /tmp/job.id & done; wait
 *   RANK=0 WORLD_SIZE=2 RDMACCL_ROOT=first:4711 ./launcher      on the host `first`
 *   RANK=1 WORLD_SIZE=2 RDMACCL_ROOT=first:4711 ./launcher      on any other
 */
#define _POSIX_C_SOURCE 200809L
#include <ccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CHECK(call)                                                                                         \
    do {                                                                                                    \
        cclResult_t result_ = (call);                                                                       \
        if (result_ != cclSuccess) {                                                                        \
            fprintf(stderr, "%s: %s: %s\n", #call, cclGetErrorString(result_), cclGetLastError(NULL));      \
            exit(EXIT_FAILURE);                                                                             \
        }                                                                                                   \
    } while (0)

/* The first of these variables that is set; torchrun, Open MPI, MPICH, Slurm. */
static int from_environment(const char *const names[4]) {
    for (int i = 0; i < 4; i++) {
        const char *value = getenv(names[i]);
        if (value) return atoi(value);
    }
    fprintf(stderr, "none of %s, %s, %s, %s is set: use a launcher\n", names[0], names[1], names[2], names[3]);
    exit(EXIT_FAILURE);
}

/* Writes beside and renames, so that nobody reads half an id. */
static void write_id(const char *path, const cclUniqueId *id) {
    char beside[4096];
    if (snprintf(beside, sizeof beside, "%s.new", path) >= (int)sizeof beside) exit(EXIT_FAILURE);
    FILE *file = fopen(beside, "wb");
    if (!file || fwrite(id, sizeof *id, 1, file) != 1 || fclose(file) != 0 || rename(beside, path) != 0) {
        perror(path);
        exit(EXIT_FAILURE);
    }
}

/* Waits until rank 0 has written it, for half a minute. */
static void read_id(const char *path, cclUniqueId *id) {
    const struct timespec pause = {0, 10 * 1000 * 1000};
    for (int attempt = 0; attempt < 3000; attempt++) {
        FILE *file = fopen(path, "rb");
        if (file) {
            size_t read = fread(id, sizeof *id, 1, file);
            fclose(file);
            if (read == 1) return;
        }
        nanosleep(&pause, NULL);
    }
    fprintf(stderr, "%s: rank 0 has not written it\n", path);
    exit(EXIT_FAILURE);
}

int main(int argc, char **argv) {
    static const char *const ranks[4] = {"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"};
    static const char *const sizes[4] = {"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS"};
    const char *file = argc == 2 ? argv[1] : NULL;
    if (!file && !getenv("RDMACCL_ROOT")) {
        fprintf(stderr, "usage: %s FILE, which does not exist yet and all ranks can see; or set RDMACCL_ROOT\n", argv[0]);
        return EXIT_FAILURE;
    }
    int rank = from_environment(ranks), size = from_environment(sizes);

    cclUniqueId id;
    if (rank == 0 || !file) CHECK(cclGetUniqueId(&id));
    if (file && rank == 0) write_id(file, &id);
    if (file && rank != 0) read_id(file, &id);
    cclComm_t comm;
    CHECK(cclCommInitRank(&comm, size, id, rank));
    /* All have joined, so all have read it. Who knows the id can join the job: do not leave it lying about. */
    if (file && rank == 0) remove(file);

    /* The mean over the ranks, of 0, 1, …, size - 1. */
    double mean, mine = (double)rank;
    CHECK(cclAllReduce(&mine, &mean, 1, cclFloat64, cclAvg, comm, NULL));
    printf("rank %d of %d: the mean rank is %g\n", rank, size, mean);

    CHECK(cclCommDestroy(comm));
    return mean == (size - 1) / 2.0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
