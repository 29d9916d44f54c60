/* MPI_Allreduce between the ranks that mpirun starts: what `cargo xtask softroce -- compare` puts beside ours. It
 * measures as all_reduce_perf does: the mean time of so many calls after as many that do not count, the mean over the ranks,
 * and checks the result.
 *
 *   mpicc mpi_all_reduce.c -o mpi_all_reduce && mpirun -n 2 ./mpi_all_reduce BYTES CALLS [BYTES CALLS …]
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

/* One size: a line of rank 0, and how many elements are wrong on all ranks. */
static int measure(int rank, int size, long bytes, long calls) {
    int count = (int)(bytes / (long)sizeof(float)), wrong = 0;
    float *mine = malloc((size_t)bytes), *sum = malloc((size_t)bytes);
    if (!mine || !sum) MPI_Abort(MPI_COMM_WORLD, 2);
    for (int i = 0; i < count; i++) mine[i] = (float)(rank + i % 7);

    for (long i = 0; i < calls; i++) MPI_Allreduce(mine, sum, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    MPI_Barrier(MPI_COMM_WORLD);
    double start = MPI_Wtime();
    for (long i = 0; i < calls; i++) MPI_Allreduce(mine, sum, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    double each = (MPI_Wtime() - start) * 1e6 / (double)calls, mean;

    for (int i = 0; i < count; i++) wrong += sum[i] != (float)(size * (size - 1) / 2 + size * (i % 7));
    MPI_Allreduce(&each, &mean, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    MPI_Allreduce(MPI_IN_PLACE, &wrong, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 0) printf("bytes %ld microseconds %.3f wrong %d\n", bytes, mean / size, wrong);
    free(mine);
    free(sum);
    return wrong;
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank, size, wrong = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (int i = 1; i + 1 < argc; i += 2) wrong += measure(rank, size, atol(argv[i]), atol(argv[i + 1]));
    MPI_Finalize();
    return wrong ? EXIT_FAILURE : EXIT_SUCCESS;
}
