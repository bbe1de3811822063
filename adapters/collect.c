/* Collects the matches of a Hyperscan library without entering Python for each of them.
 *
 * Needs nothing but a C compiler: the library is found when the program runs, and the caller passes its `hs_scan`. Positions are bytes from the
 * start of the text. Every function returns 0, an error of the library (negative), or 1 where memory ran out; then nothing it filled counts.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef int (*match_t)(unsigned id, unsigned long long from, unsigned long long to, unsigned flags, void *context);
typedef int (*scan_t)(const void *db, const char *text, unsigned length, unsigned flags, void *scratch, match_t, void *context);

/* Expression ids, starts (where the database tells them, else 0) and ends of n matches; scanning stops after more than `most`. The caller owns the
 * arrays and frees them by `release`. */
struct matches {
    int64_t n, room, most;
    int64_t *id, *end, *start;
    int64_t failed;
};

/* A database of the library and its scratch space. */
struct database {
    const void *db;
    void *scratch;
};

/* Records by start and stop, and how far the text reaches that is made of them alone. */
struct records {
    int64_t n, room;
    int64_t *start, *stop, *joined;
};

static int resized(int64_t **array, int64_t room) {
    int64_t *more = realloc(*array, (size_t)room * sizeof **array);
    if (more) *array = more;
    return more != NULL;
}

static int found(unsigned id, unsigned long long from, unsigned long long to, unsigned flags, void *context) {
    struct matches *m = context;
    (void)flags;
    if (m->n == m->room) {
        int64_t room = m->room ? 2 * m->room : 1024;
        if (!resized(&m->id, room) || !resized(&m->end, room) || !resized(&m->start, room)) return (int)(m->failed = 1);
        m->room = room;
    }
    m->id[m->n] = id, m->start[m->n] = (int64_t)from, m->end[m->n++] = (int64_t)to;
    return m->n > m->most;
}

void release(struct matches *m) {
    free(m->id), free(m->end), free(m->start);
    memset(m, 0, sizeof *m);
}

int collect(scan_t scan, const struct database *d, const char *text, unsigned length, struct matches *out) {
    out->n = out->failed = 0;
    int code = scan(d->db, text, length, 0, d->scratch, found, out);
    return out->failed ? 1 : code;
}

/* The records in which a match ends, each once, as long as matches come by ascending ends; one told again later is only looked at twice. */
static int records_of(const char *text, int64_t length, const struct matches *m, struct records *r) {
    int64_t stop = 0, last = 0;
    for (int64_t i = 0; i < m->n; i++) {
        int64_t at = m->end[i];
        if (at <= stop && at > last) continue;
        const char *before = memrchr(text, '\n', (size_t)at), *after = memchr(text + at, '\n', (size_t)(length - at));
        if (r->n == r->room) {
            int64_t room = r->room ? 2 * r->room : 1024;
            if (!resized(&r->start, room) || !resized(&r->stop, room) || !resized(&r->joined, room)) return 1;
            r->room = room;
        }
        last = before ? before + 1 - text : 0;
        stop = after ? after + 1 - text : length;
        r->start[r->n] = last, r->stop[r->n] = stop;
        r->joined[r->n] = (r->n ? r->joined[r->n - 1] : 0) + stop - last;
        r->n++;
    }
    return 0;
}

/* Matches of d in these records alone, joined for one scan and placed again. */
static int within(scan_t scan, const struct database *d, const char *text, const struct records *r, struct matches *out) {
    int64_t size = r->joined[r->n - 1];
    char *joined = malloc((size_t)size);
    if (!joined) return 1;
    for (int64_t i = 0, at = 0; i < r->n; at = r->joined[i++])
        memcpy(joined + at, text + r->start[i], (size_t)(r->stop[i] - r->start[i]));
    int code = collect(scan, d, joined, (unsigned)size, out);
    for (int64_t i = 0, k = 0; i < out->n; i++) {
        while (k && r->joined[k - 1] >= out->end[i]) k--; /* hardly ever: ends ascend */
        while (r->joined[k] < out->end[i]) k++;           /* an end never lies past its record's line feed */
        out->end[i] = r->stop[k] - (r->joined[k] - out->end[i]);
    }
    free(joined);
    return code;
}

/* Matches of d in the records that hold a literal of the gate, or in all of the text where these are most of it. Of the gate's matches those
 * with ids below `once` are kept in `literals`. */
int gated(scan_t scan, const struct database *gate, int64_t once, const struct database *d, const char *text, unsigned length,
          struct matches *literals, struct matches *out) {
    struct records r = {0};
    out->n = 0;
    int code = collect(scan, gate, text, length, literals);
    if (!code) code = records_of(text, length, literals, &r);
    if (!code && r.n) {
        if (r.joined[r.n - 1] > (int64_t)length / 2)
            code = collect(scan, d, text, length, out);
        else
            code = within(scan, d, text, &r, out);
    }
    int64_t kept = 0;
    for (int64_t i = 0; i < literals->n; i++)
        if (literals->id[i] < once) literals->id[kept++] = literals->id[i];
    literals->n = kept;
    free(r.start), free(r.stop), free(r.joined);
    return code;
}
