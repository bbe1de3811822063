/* Passes over the records that are known to hold nothing, without entering Python for each of them.
 *
 * Records that differ in their digits only have one shape. Of each shape one record was judged; where a digit matters to an expression that may
 * match there, the shape names the part of the record in which it does, and only records with the same bytes in that part are alike. Records are
 * compared with what was judged byte by byte: no two are ever taken for alike because a hash says so.
 */
#include "blind.h"

enum { UNJUDGED, QUIET, LOUD };
enum { PROBES = 16, VARIANTS = 8, LONGEST = 4096 };
enum { GIVEN_UP = -1, FULL = -2 };

/* table: 1 + the number of a shape, or 0; `places` is a power of two. blind, raw: of each shape the record it was met in, with every digit as '0' and
 * as it was, both with a line feed, from begin[k] to begin[k + 1]. from, to: the part in which digits matter. next: the shape that followed last.
 * kept: the records of a text that are not known to hold nothing, each with a line feed; of each: `stop`, where that stands in `kept`; `line`, how
 * many line feeds come before it in the text. feeds: line feeds of the text, so far. */
struct sieve {
    uint32_t *table;
    int64_t places, many, most, room;
    uint8_t *blind, *raw;
    int64_t *begin;
    int32_t *from, *to, *next;
    uint8_t *verdict;
    uint8_t *kept;
    int64_t *stop, *line;
    int64_t records, used, most_records, most_used, feeds;
};

INLINE uint64_t mixed(uint64_t h, struct sixteen x) {
    h = (h ^ x.low) * 0xff51afd7ed558ccdu;
    return ((h ^ h >> 32) ^ x.high) * 0xc4ceb9fe1a85ec53u;
}

/* Of the length and three pieces: records are compared whole afterwards. */
INLINE uint64_t hashed(const uint8_t *t, int64_t n) {
    uint64_t h = (uint64_t)n * 0x9e3779b97f4a7c15u;
    h = mixed(h, piece(t, 0, n));
    if (n > 16) {
        h = mixed(h, piece(t, (n - 16) / 2, n));
        h = mixed(h, piece(t, n - 16, n));
    }
    return h ^ h >> 29;
}

/* Whether a record equals one that is written blind. */
INLINE int alike(const uint8_t *t, const uint8_t *written, int64_t n) {
    if (n < 16) {
        struct sixteen x = blind(t, n);
        return !memcmp(&x, written, (size_t)n);
    }
    for (int64_t k = 0; k + 16 <= n; k += 16)
        if (!blinded_is(t + k, written + k)) return 0;
    return blinded_is(t + n - 16, written + n - 16);
}

/* Remembers a shape; asked: one that differs from it only where digits matter, or -1. Returns whether there was room. */
static int added(struct sieve *s, uint32_t *place, const uint8_t *t, int64_t n, int64_t asked) {
    int64_t k = s->many, at = s->begin[k];
    if (k >= s->most || at + n + 1 > s->room) return 0;
    write_blind(t, n, s->blind + at);
    memcpy(s->raw + at, t, (size_t)n);
    s->blind[at + n] = s->raw[at + n] = '\n';
    s->from[k] = asked < 0 ? 0 : s->from[asked], s->to[k] = asked < 0 ? 0 : s->to[asked];
    s->verdict[k] = UNJUDGED, s->next[k] = (int32_t)k;
    s->begin[k + 1] = at + n + 1;
    *place = (uint32_t)++s->many;
    return 1;
}

/* Whether a record, as long as those of a shape, is one. */
INLINE int is(const struct sieve *s, int64_t k, const uint8_t *t, int64_t n) {
    const int64_t at = s->begin[k];
    return alike(t, s->blind + at, n) && !memcmp(t + s->from[k], s->raw + at + s->from[k], (size_t)(s->to[k] - s->from[k]));
}

/* The shape of a record; it is remembered if it is new. -1 where there is no telling, -2 where there was no room to. */
INLINE int64_t shape_of(struct sieve *s, const uint8_t *t, int64_t n) {
    const uint64_t h = hashed(t, n);
    int64_t asked = -1;
    int variants = 0;
    for (uint64_t probe = 0; probe < PROBES; probe++) {
        uint32_t *place = s->table + ((h + probe) & (uint64_t)(s->places - 1));
        if (!*place) return added(s, place, t, n, asked) ? s->many - 1 : FULL;
        const int64_t k = *place - 1;
        if (s->begin[k + 1] - s->begin[k] != n + 1) continue;
        if (is(s, k, t, n)) return k;
        if (s->from[k] == s->to[k] || !alike(t, s->blind + s->begin[k], n)) continue;
        if (++variants == VARIANTS) return -1;
        asked = k;
    }
    return -1;
}

void forget(struct sieve *s) {
    s->many = 0;
    s->begin[0] = 0;
    memset(s->table, 0, (size_t)s->places * sizeof *s->table);
}

/* Where the next such byte is, from `at` on; `known` is where it was last time. */
INLINE int64_t found(const uint8_t *text, int64_t size, int64_t at, int c, int64_t known) {
    if (known >= at) return known;
    const uint8_t *there = memchr(text + at, c, (size_t)(size - at));
    return there ? there - text : size;
}

/* Goes on from `at`, until `fresh` bytes were kept of shapes that are to be judged, or to the end; a record ends at a line feed or a carriage return.
 * Returns where it stands; GIVEN_UP where more is kept than pays, FULL where no more can be remembered. */
int64_t sift(struct sieve *s, const uint8_t *text, int64_t size, int64_t at, int64_t fresh) {
    int64_t before = 0, feed = -1, carriage = -1;
    while (at < size && fresh > 0) {
        const uint8_t *t = text + at;
        int64_t k = s->many ? s->next[before] : -1, n = k < 0 ? 0 : s->begin[k + 1] - s->begin[k] - 1;
        /* What was judged holds no end of a record, so a record that is alike ends here. */
        if (k < 0 || n >= size - at || (t[n] != '\n' && t[n] != '\r') || !is(s, k, t, n)) {
            feed = found(text, size, at, '\n', feed), carriage = found(text, size, at, '\r', carriage);
            n = (feed < carriage ? feed : carriage) - at;
            k = n <= LONGEST ? shape_of(s, t, n) : -1;
            if (k == FULL) return FULL;
            if (k >= 0) s->next[before] = (int32_t)k;
        }
        const int64_t line = s->feeds;
        s->feeds += at + n < size && t[n] == '\n';
        at += n + 1;
        const int judged = k < 0 ? LOUD : s->verdict[k];
        if (k >= 0) before = k;
        if (judged == QUIET) continue;
        if (judged == UNJUDGED) fresh -= n + 1;
        if (s->records == s->most_records || s->used + n + 1 > s->most_used) return GIVEN_UP;
        memcpy(s->kept + s->used, t, (size_t)n);
        s->used += n + 1;
        s->kept[s->used - 1] = '\n';
        s->stop[s->records] = s->used - 1, s->line[s->records++] = line;
    }
    return at < size ? at : size;
}
