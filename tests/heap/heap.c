/* The preloaded heap as a program meets it: every function of malloc(3) on its memory, threads, forks, and what peers map.
   Run with LD_PRELOAD=librdmaccl_heap.so. */
#define _GNU_SOURCE
#include <ccl.h>
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(it)                                                                  \
    do {                                                                           \
        if (!(it)) {                                                               \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #it);               \
            exit(1);                                                               \
        }                                                                          \
    } while (0)

enum { KIB = 1 << 10, MIB = 1 << 20, RANKS = 2, THREADS = 4 };

/* How many mappings of heaps there are, and whether one of them holds this address. */
static int heaps(const void *of, bool *inside) {
    FILE *maps = fopen("/proc/self/maps", "r");
    CHECK(maps);
    char line[512];
    int found = 0;
    *inside = false;
    while (fgets(line, sizeof line, maps)) {
        unsigned long start, end;
        if (!strstr(line, "/memfd:rdmaccl-heap") || sscanf(line, "%lx-%lx", &start, &end) != 2) continue;
        found++;
        *inside |= start <= (uintptr_t)of && (uintptr_t)of < end;
    }
    fclose(maps);
    return found;
}

static bool is_mapped(const void *block) {
    bool inside;
    heaps(block, &inside);
    return inside;
}

static bool all(const void *block, size_t size, int value) {
    const unsigned char *bytes = block;
    for (size_t i = 0; i < size; i++)
        if (bytes[i] != (unsigned char)value) return false;
    return true;
}

static void every_function(void) {
    void *shorter = malloc(31 * KIB), *block = malloc(32 * KIB);
    CHECK(!is_mapped(shorter) && is_mapped(block));
    CHECK(malloc_usable_size(block) >= 32 * KIB && malloc_usable_size(shorter) >= 31 * KIB);
    memset(shorter, 1, 31 * KIB);
    memset(block, 2, 32 * KIB);
    /* From glibc's to the heap's and back, and from block to block. */
    shorter = realloc(shorter, 2 * MIB);
    CHECK(is_mapped(shorter) && all(shorter, 31 * KIB, 1));
    block = realloc(block, 5 * MIB);
    CHECK(is_mapped(block) && all(block, 32 * KIB, 2));
    block = realloc(block, 40 * KIB);
    CHECK(is_mapped(block) && all(block, 32 * KIB, 2));
    block = realloc(block, 100);
    CHECK(!is_mapped(block) && all(block, 100, 2));
    free(block);
    CHECK(realloc(shorter, 0) == NULL);
    /* Zero again after somebody had it. */
    const size_t sizes[] = {33 * KIB, 3 * MIB, 50 * MIB};
    for (int i = 0; i < 6; i++) {
        block = calloc(sizes[i / 2] / 4, 4);
        CHECK(is_mapped(block) && all(block, sizes[i / 2], 0));
        memset(block, 3, sizes[i / 2]);
        errno = 7;
        free(block);
        CHECK(errno == 7);
    }
    volatile size_t most = SIZE_MAX, half = SIZE_MAX / 2;
    CHECK(!calloc(most, 2) && errno == ENOMEM);
    CHECK(!malloc(half) && !realloc(NULL, half));
    CHECK(posix_memalign(&block, 3, 64 * KIB) == EINVAL && posix_memalign(&block, 64, half) == ENOMEM);
    for (size_t alignment = 8; alignment <= 16 * MIB; alignment *= 4) {
        CHECK(posix_memalign(&block, alignment, 100 * KIB) == 0 && is_mapped(block) && (uintptr_t)block % alignment == 0);
        void *other = aligned_alloc(alignment, 16 * MIB);
        CHECK(is_mapped(other) && (uintptr_t)other % alignment == 0);
        free(block);
        free(other);
    }
    block = valloc(64 * KIB);
    CHECK(is_mapped(block) && (uintptr_t)block % 4096 == 0);
    free(block);
    free(NULL);
}

/* Blocks that are written, compared, moved and freed, by all threads at once. */
static void *crowd(void *argument) {
    unsigned random = (unsigned)(uintptr_t)argument;
    enum { BLOCKS = 16 };
    unsigned char *blocks[BLOCKS] = {0};
    size_t sizes[BLOCKS] = {0};
    for (int step = 0; step < 4000; step++) {
        random = random * 1103515245u + 12345u;
        size_t i = random >> 16 & (BLOCKS - 1), size = (random >> 4) % (200 * KIB) + 2, known = sizes[i];
        unsigned char own = (unsigned char)(i + (uintptr_t)argument);
        if (blocks[i]) CHECK(blocks[i][0] == (unsigned char)i && blocks[i][known - 1] == own);
        if (random >> 30 == 0) {
            free(blocks[i]);
            blocks[i] = NULL;
            continue;
        }
        blocks[i] = realloc(blocks[i], size);
        CHECK(blocks[i]);
        sizes[i] = size;
        blocks[i][0] = (unsigned char)i;
        blocks[i][size - 1] = own;
    }
    for (int i = 0; i < BLOCKS; i++) free(blocks[i]);
    return NULL;
}

static void threads(void) {
    pthread_t started[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++) CHECK(!pthread_create(&started[i], NULL, crowd, (void *)(i + 1)));
    for (int i = 0; i < THREADS; i++) CHECK(!pthread_join(started[i], NULL));
}

static void succeeded(pid_t child) {
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* What either side writes after a fork the other one does not see; the child's child has a copy too. */
static void forks(void) {
    const size_t size = 3 * MIB;
    char *block = malloc(size), *sparse = calloc(1, 60 * MIB), *freed = malloc(size);
    memset(block, 1, size);
    memset(freed, 1, size);
    sparse[50 * MIB] = 5;
    free(freed);
    int go[2];
    CHECK(pipe(go) == 0);
    pid_t child = fork();
    if (child == 0) {
        char byte;
        CHECK(read(go[0], &byte, 1) == 1);
        CHECK(all(block, size, 1) && !is_mapped(block));
        CHECK(all(sparse, 50 * MIB, 0) && sparse[50 * MIB] == 5);
        memset(block, 3, size);
        pid_t second = fork();
        if (second == 0) {
            memset(block, 4, size);
            _exit(!all(block, size, 4));
        }
        succeeded(second);
        CHECK(all(block, size, 3));
        /* Without shared memory there is the C library's. */
        void *own = malloc(MIB);
        CHECK(own && !is_mapped(own) && malloc_usable_size(block) >= size);
        block = realloc(block, size + MIB);
        CHECK(block && all(block, size, 3));
        free(own);
        free(block);
        free(sparse);
        _exit(0);
    }
    memset(block, 2, size);
    CHECK(write(go[1], "", 1) == 1);
    succeeded(child);
    CHECK(all(block, size, 2) && is_mapped(block));
    close(go[0]);
    close(go[1]);
    free(block);
    free(sparse);
}

/* Ranks that fork first, and then join: what they allocate from then on their peers map. */
static void rank_main(int rank, const cclUniqueId *id, const float *before) {
    cclComm_t comm;
    CHECK(cclCommInitRank(&comm, RANKS, *id, rank) == cclSuccess);
    const size_t count = 300 * KIB;
    float *send = malloc(count * sizeof *send), *receive = malloc(count * sizeof *receive);
    CHECK(is_mapped(send) && is_mapped(receive));
    for (int call = 0; call < 3; call++) {
        for (size_t i = 0; i < count; i++) send[i] = (float)(rank + call) + (float)(i % 64);
        CHECK(cclAllReduce(send, receive, count, cclFloat32, cclSum, comm, NULL) == cclSuccess);
        for (size_t i = 0; i < count; i++) CHECK(receive[i] == (float)(1 + 2 * call) + 2 * (float)(i % 64));
    }
    bool inside;
    CHECK(heaps(send, &inside) == RANKS);
    /* The copy of what the parent had is mapped by nobody, and as good. */
    CHECK(!is_mapped(before));
    CHECK(cclAllReduce(before, receive, count, cclFloat32, cclSum, comm, NULL) == cclSuccess);
    for (size_t i = 0; i < count; i++) CHECK(receive[i] == (float)RANKS);
    CHECK(heaps(send, &inside) == RANKS);
    free(send);
    free(receive);
    CHECK(cclCommDestroy(comm) == cclSuccess);
    _exit(0);
}

static void ranks(void) {
    cclUniqueId id;
    CHECK(cclGetUniqueId(&id) == cclSuccess);
    float *before = malloc(300 * KIB * sizeof *before);
    for (size_t i = 0; i < 300 * KIB; i++) before[i] = 1;
    CHECK(is_mapped(before));
    pid_t children[RANKS];
    for (int rank = 0; rank < RANKS; rank++) {
        children[rank] = fork();
        if (children[rank] == 0) rank_main(rank, &id, before);
    }
    for (int rank = 0; rank < RANKS; rank++) succeeded(children[rank]);
    free(before);
}

/* Of what was freed one slab is left, and of long blocks no page. */
static void nothing_stays(void) {
    for (int i = 0; i < 20; i++) {
        char *longer = malloc(300 * MIB), *block = malloc(200 * MIB), *other = malloc(200 * MIB);
        CHECK(longer && block && other);
        memset(block, 1, 200 * MIB);
        longer[299 * MIB] = 1;
        free(block);
        free(longer);
        free(other);
    }
    bool inside;
    CHECK(heaps(NULL, &inside) <= 1);
    long resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file && fscanf(file, "%*d %ld", &resident) == 1);
    fclose(file);
    CHECK(resident * sysconf(_SC_PAGESIZE) < 100l * MIB);
}

int main(void) {
    CHECK(getenv("LD_PRELOAD"));
    every_function();
    threads();
    forks();
    ranks();
    nothing_stays();
    return 0;
}
