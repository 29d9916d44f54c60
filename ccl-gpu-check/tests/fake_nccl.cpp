// A libnccl out of thin air, for the fake driver: ranks are threads of one process. FAKE_NCCL says how it is:
//   a number      its version; before 23003 two ranks are refused on one device
//   wrong         its sums are
//   hang, crash   its ranks never meet, or end the process
// It makes calls of several ranks on the host, which no graph can record.
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <vector>

typedef unsigned long long Device;
struct Id { char bytes[128]; };
struct Comm { int ranks, rank; };

static const char *script() { return getenv("FAKE_NCCL") ? getenv("FAKE_NCCL") : ""; }
static int version() { return atoi(script()) ? atoi(script()) : 23004; }
static thread_local char why[200];
static pthread_barrier_t meeting;
static Device sent[16];

template <class F> static F driver(const char *name) {
    static void *library = dlopen(getenv("RDMACCL_CUDA"), RTLD_NOW);
    return (F)dlsym(library, name);
}

static int refuse(int code, const char *text) {
    snprintf(why, sizeof why, "%s", text);
    return code;
}

extern "C" {
int ncclGetVersion(int *to) { *to = version(); return 0; }
int ncclGetUniqueId(Id *to) { memset(to, 7, sizeof *to); return 0; }
const char *ncclGetErrorString(int code) { return code == 5 ? "invalid usage" : "some error"; }
const char *ncclGetLastError(void *) { return why; }

int ncclCommInitRank(Comm **to, int ranks, Id id, int rank) {
    for (char byte : id.bytes)
        if (byte != 7) return refuse(4, "not an id of this library");
    if (!strcmp(script(), "hang")) pause();
    if (!strcmp(script(), "crash")) abort();
    bool shares = version() >= 23003 && getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    if (ranks > 1 && !shares) return refuse(5, "Duplicate GPU detected");
    if (ranks > 1 && !getenv("NCCL_MAX_CTAS")) return refuse(5, "too many blocks");
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    static int all;
    all = ranks;
    pthread_once(&once, [] { pthread_barrier_init(&meeting, nullptr, all); });
    *to = new Comm{ranks, rank};
    return 0;
}

int ncclCommDestroy(Comm *comm) { delete comm; return 0; }
int ncclCommRegister(Comm *, void *, size_t, void **handle) { *handle = nullptr; return 0; }
int ncclCommDeregister(Comm *, void *) { return 0; }

int ncclAllReduce(Device from, Device to, size_t count, int type, int op, Comm *comm, void *stream) {
    if (type != 7 || op != 0) return refuse(4, "sums of floats only");
    if (comm->ranks == 1) {
        auto copy = driver<int (*)(Device, Device, size_t, void *)>("cuMemcpyAsync");
        return copy(to, from, 4 * count, stream) ? refuse(1, "cuMemcpyAsync") : 0;
    }
    int capturing = 0;
    driver<int (*)(void *, int *)>("cuStreamIsCapturing")(stream, &capturing);
    if (capturing) return refuse(5, "no graphs here");
    driver<int (*)(void *)>("cuStreamSynchronize")(stream);
    sent[comm->rank] = from;
    pthread_barrier_wait(&meeting);
    std::vector<float> sums(count), part(count);
    for (int rank = 0; rank < comm->ranks; rank++) {
        driver<int (*)(void *, Device, size_t)>("cuMemcpyDtoH_v2")(part.data(), sent[rank], 4 * count);
        for (size_t i = 0; i < count; i++) sums[i] += part[i];
    }
    if (!strcmp(script(), "wrong")) sums[count / 2] += 1;
    pthread_barrier_wait(&meeting);
    return driver<int (*)(Device, const void *, size_t)>("cuMemcpyHtoD_v2")(to, sums.data(), 4 * count) ? 1 : 0;
}
}
