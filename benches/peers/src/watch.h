/* How far the ranks' cores are from each other, looked at by the ranks themselves beside each cell: virtual machines are
 * moved to other cores from second to second, and what is measured then says more of that than of a library. */
#ifndef WATCH_H
#define WATCH_H
#include <stdbool.h>

/* Without a place to meet every look finds all as it should be. */
struct watch {
    struct page *page; /* of the file that all ranks map */
    int rank, ranks;
    double low, high;  /* the nanoseconds that a cache line shall take */
    unsigned looks;    /* made so far */
    int left;          /* looks that there is still patience for */
};

/* `text` is LOW:HIGH:FILE, nanoseconds and a file of a page of zeros; NULL, or a rank by itself: nothing is watched. All ranks have made the call
 * before rank 0 looks. */
struct watch watch_open(const char *text, int rank, int ranks);

/* Whether a cache line takes from rank 0 to a rank of another core what it should. All ranks make the call, and all have
 * the same answer; those that are not needed sleep meanwhile. */
bool watch_look(struct watch *watch);

/* Looks until it is so, a twentieth of a second apart, while there is patience. */
bool watch_wait(struct watch *watch);
#endif
