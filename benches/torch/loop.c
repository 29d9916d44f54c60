/* The C ABI alone, called in a loop by the benchmark: what a blocking all-reduce costs without PyTorch. */
#include <ccl.h>
#include <time.h>

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static cclComm_t comm;

int id_bytes(void) { return (int)sizeof(cclUniqueId); }

int make_id(cclUniqueId* id) { return cclGetUniqueId(id); }

int join(int ranks, const cclUniqueId* id, int rank) { return cclCommInitRank(&comm, ranks, *id, rank); }

/* Seconds per call, of a sum of floats in place; negative for an error. */
double all_reduce(float* data, size_t count, int calls) {
  double start = now();
  for (int i = 0; i < calls; i++) {
    if (cclAllReduce(data, data, count, cclFloat32, cclSum, comm, NULL) != cclSuccess) return -1;
  }
  return (now() - start) / calls;
}

int leave(void) { return cclCommDestroy(comm); }
