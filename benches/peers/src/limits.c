/* What this machine can do at best, to hold measurements against: two threads on two cores, ordinary pages.
 * Built by benches/peers/run into target/peers/bin/limits; takes some 20 s. Best of several rounds throughout.
 * `limits bare BYTES...` prints only lines of: bytes, and the microseconds of an all-reduce over mapped memory and of its stores alone. */
#define _GNU_SOURCE
#include "timing.h"
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <signal.h>
#include <unistd.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

enum { KIB = 1 << 10, MIB = 1 << 20 };

/* Not of zeros: there are machines that write lines of zeros three times as fast as others. */
static void *buffer(size_t bytes) {
    void *memory = aligned_alloc(2 * MIB, (bytes + 2 * MIB - 1) / (2 * MIB) * (2 * MIB));
    if (!memory) exit(1);
    madvise(memory, bytes, MADV_NOHUGEPAGE);
    memset(memory, 1, bytes);
    return memory;
}

static const char *name(size_t bytes) {
    static char text[4][16];
    static int next;
    char *at = text[next++ % 4];
    if (bytes >= MIB) snprintf(at, 16, "%zuM", bytes / MIB);
    else if (bytes >= KIB) snprintf(at, 16, "%zuK", bytes / KIB);
    else snprintf(at, 16, "%zu", bytes);
    return at;
}

/* ---- two threads that work together ---- */

static _Alignas(64) atomic_uint lines[2][16];

/* Waits until the other has come as far. */
static void meet(int me, unsigned step) {
    atomic_store_explicit(&lines[me][0], step, memory_order_release);
    while ((int)(atomic_load_explicit(&lines[!me][0], memory_order_acquire) - step) < 0) {}
}

struct work {
    void (*body)(int me, void *context);
    void *context;
    int me, core;
};

static void *begin(void *at) {
    struct work *work = at;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)work->core, &set);
    sched_setaffinity(0, sizeof set, &set);
    work->body(work->me, work->context);
    return NULL;
}

static void both(void (*body)(int me, void *context), void *context, int core0, int core1) {
    struct work work[2] = {{body, context, 0, core0}, {body, context, 1, core1}};
    pthread_t threads[2];
    lines[0][0] = lines[1][0] = 0;
    for (int i = 0; i < 2; i++)
        if (pthread_create(&threads[i], NULL, begin, &work[i])) exit(1);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
}

/* ---- memory ---- */

static volatile float sink;

static void load(float *to, const float *a, const float *b, size_t count) {
    float sums[16] = {0};
    (void)to, (void)b;
    for (size_t i = 0; i + 16 <= count; i += 16)
        for (int j = 0; j < 16; j++) sums[j] += a[i + (size_t)j];
    for (int j = 0; j < 16; j++) sink = sums[j];
}

static void copy(float *to, const float *a, const float *b, size_t count) {
    (void)b;
    memcpy(to, a, count * sizeof *to);
}

static void add(float *restrict to, const float *restrict a, const float *restrict b, size_t count) {
    for (size_t i = 0; i < count; i++) to[i] = a[i] + b[i];
}

static void accumulate(float *restrict to, const float *restrict a, const float *b, size_t count) {
    (void)b;
    for (size_t i = 0; i < count; i++) to[i] += a[i];
}

/* The result goes past the caches, where the machine can do that. */
static void stream(float *to, const float *a, const float *b, size_t count) {
#ifdef __SSE2__
    for (size_t i = 0; i + 4 <= count; i += 4) _mm_stream_ps(to + i, _mm_add_ps(_mm_loadu_ps(a + i), _mm_loadu_ps(b + i)));
    _mm_sfence();
#else
    add(to, a, b, count);
#endif
}

typedef void kernel(float *to, const float *a, const float *b, size_t count);

struct sweep {
    kernel *kernel;
    size_t bytes;
    double least[2];
};

static void sweep(int me, void *context) {
    struct sweep *sweep = context;
    float *to = buffer(sweep->bytes), *a = buffer(sweep->bytes), *b = buffer(sweep->bytes);
    int times = sweep->bytes < 32 * MIB ? (int)(32 * MIB / sweep->bytes) : 1;
    double least = 1e9;
    for (unsigned round = 1; round <= 7; round++) {
        meet(me, round);
        double start = now();
        for (int i = 0; i < times; i++) {
            sweep->kernel(to, a, b, sweep->bytes / sizeof *to);
            __asm__ volatile("" ::: "memory");
        }
        double taken = (now() - start) / times;
        if (taken < least) least = taken;
    }
    sweep->least[me] = least;
    free(to), free(a), free(b);
}

static void memory(void) {
    const struct { const char *name; kernel *kernel; int touched; } kernels[] = {
        {"read", load, 1}, {"copy", copy, 2}, {"c = a + b", add, 3}, {"c = a + b, streamed", stream, 3}, {"a += b", accumulate, 3}};
    const size_t sizes[] = {256 * KIB, 4 * MIB, 128 * MIB};
    printf("memory, GB/s touched by both cores together, arrays of\n%-24s", "");
    for (size_t s = 0; s < 3; s++) printf("%10s", name(sizes[s]));
    for (size_t k = 0; k < sizeof kernels / sizeof *kernels; k++) {
        printf("\n%-24s", kernels[k].name);
        for (size_t s = 0; s < 3; s++) {
            struct sweep work = {kernels[k].kernel, sizes[s], {0, 0}};
            both(sweep, &work, 0, 1);
            double slower = work.least[0] > work.least[1] ? work.least[0] : work.least[1];
            printf("%10.1f", 2.0 * kernels[k].touched * (double)sizes[s] / slower / 1e9);
        }
    }
    printf("\n\n");
}

/* ---- a message ---- */

enum waiting { SPIN, YIELD, SLEEP };

struct turns {
    enum waiting waiting;
    unsigned count;
    double least;
};

static void await(atomic_uint *line, unsigned value, enum waiting waiting) {
    unsigned seen;
    while ((seen = atomic_load_explicit(line, memory_order_acquire)) != value) {
        if (waiting == YIELD) sched_yield();
        if (waiting == SLEEP) syscall(SYS_futex, line, FUTEX_WAIT, seen, NULL, NULL, 0);
    }
}

static void tell(atomic_uint *line, unsigned value, enum waiting waiting) {
    atomic_store_explicit(line, value, memory_order_release);
    if (waiting == SLEEP) syscall(SYS_futex, line, FUTEX_WAKE, 1, NULL, NULL, 0);
}

static void turns(int me, void *context) {
    struct turns *turns = context;
    double least = 1e9;
    for (unsigned round = 0, i = 1; round < 20; round++) {
        double start = now();
        for (unsigned end = i + turns->count; i < end; i++) {
            if (me) await(&lines[0][0], i, turns->waiting);
            tell(&lines[me][0], i, turns->waiting);
            if (!me) await(&lines[1][0], i, turns->waiting);
        }
        double taken = (now() - start) / (2 * turns->count);
        if (taken < least) least = taken;
    }
    if (!me) turns->least = least;
}

static void message(void) {
    const struct { const char *name; enum waiting waiting; int core; unsigned count; } ways[] = {
        {"spin, two cores", SPIN, 1, 5000}, {"sched_yield, two cores", YIELD, 1, 1000},
        {"sched_yield, one core", YIELD, 0, 500}, {"futex, two cores", SLEEP, 1, 200}, {"futex, one core", SLEEP, 0, 200}};
    printf("one cache line, one way, ns\n");
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        struct turns work = {ways[i].waiting, ways[i].count, 0};
        both(turns, &work, 0, ways[i].core);
        printf("%-24s%10.1f\n", ways[i].name, work.least * 1e9);
    }
    printf("\n");
}

/* ---- cross-memory attach ---- */

static void attach(void) {
    const size_t sizes[] = {4 * KIB, 32 * KIB, 256 * KIB, MIB, 16 * MIB, 64 * MIB};
    char *from = buffer(64 * MIB), *to = buffer(64 * MIB);
    pid_t child = fork();
    if (!child) {
        memset(from, 1, 64 * MIB); /* its pages become its own */
        raise(SIGSTOP);
        _exit(0);
    }
    waitpid(child, NULL, WUNTRACED);
    printf("process_vm_readv, GB/s, one reader\n");
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        double least = 1e9;
        for (int round = 0; round < 9; round++) {
            struct iovec local = {to, sizes[s]}, remote = {from, sizes[s]};
            double start = now();
            if (process_vm_readv(child, &local, 1, &remote, 1, 0) != (ssize_t)sizes[s]) least = -1;
            else if (now() - start < least) least = now() - start;
        }
        printf("%-24s%10.1f\n", name(sizes[s]), (double)sizes[s] / least / 1e9);
    }
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    free(from), free(to);
    printf("\n");
}

/* ---- all-reduces that know nothing but the work ---- */

/* `chunk` 0: both address each other's buffers; each adds its half into both outputs, past the caches where these are too
 * small. Else each copies its input in chunks into a ring that both see, and adds the other's chunk to its own.
 * `only_stores`: each stores something into its half of both outputs, past the caches. */
struct reduce {
    size_t bytes, chunk, ring;
    bool only_stores;
    float *in[2], *out[2], *rings[2];
    double least;
};

static void direct(const struct reduce *work, int me) {
    size_t count = work->bytes / sizeof(float), half = count / 2, first = me ? half : 0;
    size_t end = me ? count : half;
    const float *a = work->in[0], *b = work->in[1];
    float *to = work->out[me], *other = work->out[!me];
#ifdef __SSE2__
    if (work->bytes >= 4 * MIB) {
        for (size_t i = first; i + 16 <= end; i += 16) {
            __m128 sum[4];
            for (int k = 0; k < 4; k++) sum[k] = _mm_add_ps(_mm_load_ps(a + i + 4 * k), _mm_load_ps(b + i + 4 * k));
            for (int k = 0; k < 4; k++) _mm_stream_ps(to + i + 4 * k, sum[k]);
            for (int k = 0; k < 4; k++) _mm_stream_ps(other + i + 4 * k, sum[k]);
        }
        _mm_sfence();
        return;
    }
#endif
    add(to + first, a + first, b + first, end - first);
    add(other + first, a + first, b + first, end - first);
}

static void store(float *to, size_t count) {
#ifdef __SSE2__
    for (size_t i = 0; i + 4 <= count; i += 4) _mm_stream_ps(to + i, _mm_set1_ps(1));
    _mm_sfence();
#else
    for (size_t i = 0; i < count; i++) to[i] = 1;
#endif
}

static void stores(const struct reduce *work, int me) {
    size_t half = work->bytes / sizeof(float) / 2;
    for (int i = 0; i < 2; i++) store(work->out[i] + (me ? half : 0), half);
}

static void staged(const struct reduce *work, int me, unsigned *step) {
    size_t chunk = work->chunk / sizeof(float), count = work->bytes / sizeof(float), slots = work->ring / work->chunk;
    for (size_t at = 0; at < count; at += chunk) {
        size_t length = count - at < chunk ? count - at : chunk, slot = *step % slots * chunk;
        memcpy(work->rings[me] + slot, work->in[me] + at, length * sizeof(float));
        meet(me, ++*step);
        add(work->out[me] + at, work->in[me] + at, work->rings[!me] + slot, length);
    }
}

static void reduce(int me, void *context) {
    struct reduce *work = context;
    int times = work->bytes <= 4 * KIB ? 1000 : work->bytes <= 256 * KIB ? 50 : work->bytes <= MIB ? 5 : 1;
    unsigned step = 0;
    double least = 1e9;
    for (int round = 0; round < 15; round++) {
        meet(me, ++step);
        double start = now();
        for (int i = 0; i < times; i++) {
            if (work->chunk) staged(work, me, &step);
            else {
                meet(me, ++step);
                if (work->only_stores) stores(work, me);
                else direct(work, me);
                meet(me, ++step);
            }
        }
        double taken = (now() - start) / times;
        if (taken < least) least = taken;
    }
    if (!me) work->least = least;
}

static void references(void) {
    const size_t sizes[] = {1 * KIB, 8 * KIB, 32 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB};
    const size_t shapes[][2] = {{0, 0}, {16 * KIB, 64 * KIB}, {16 * KIB, MIB}, {64 * KIB, MIB}, {64 * KIB, 4 * MIB}};
    printf("float32 all-reduce of two threads, µs: direct, and staged in chunks/through a ring of\n%-8s%12s", "", "direct");
    for (size_t v = 1; v < 5; v++) printf("%7s/%4s", name(shapes[v][0]), name(shapes[v][1]));
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        printf("\n%-8s", name(sizes[s]));
        struct reduce work = {.bytes = sizes[s]};
        for (int i = 0; i < 2; i++)
            work.in[i] = buffer(sizes[s]), work.out[i] = buffer(sizes[s]), work.rings[i] = buffer(4 * MIB);
        for (size_t v = 0; v < 5; v++) {
            work.chunk = shapes[v][0], work.ring = shapes[v][1];
            both(reduce, &work, 0, 1);
            printf("%12.2f", work.least * 1e6);
            fflush(stdout);
        }
        for (int i = 0; i < 2; i++) free(work.in[i]), free(work.out[i]), free(work.rings[i]);
    }
    printf("\n");
}

static void bare(size_t bytes) {
    struct reduce work = {.bytes = bytes};
    for (int i = 0; i < 2; i++) work.in[i] = buffer(bytes), work.out[i] = buffer(bytes);
    both(reduce, &work, 0, 1);
    printf("%zu\t%.2f", bytes, work.least * 1e6);
    work.only_stores = true;
    both(reduce, &work, 0, 1);
    printf("\t%.2f\n", work.least * 1e6);
    for (int i = 0; i < 2; i++) free(work.in[i]), free(work.out[i]);
}

int main(int count, char **words) {
    if (count > 1 && !strcmp(words[1], "bare")) {
        for (int i = 2; i < count; i++) bare(strtoul(words[i], NULL, 10));
        return 0;
    }
    memory();
    message();
    attach();
    references();
    return 0;
}
