/* Tells which records differ in their digits only, and reads dates out of such records, without entering Python for each of them.
 *
 * Records that differ in their digits only have one shape, and a program (see fields.c) that does not ask which digit stands somewhere finds the
 * same in all of them: so each shape is written once, for the programs to run on.
 */
#include "blind.h"

enum { NONE, FOUND, LEFT, NO_DATE };

INLINE uint64_t hashed(const uint8_t *t, int64_t n) {
    uint64_t a = (uint64_t)n, b = 0x9e3779b97f4a7c15u;
    for (int64_t k = 0; k < n; k += 16) {
        struct sixteen x = piece(t, k, n);
        a = (a ^ x.low) * 0xff51afd7ed558ccdu;
        b = (b ^ x.high) * 0xc4ceb9fe1a85ec53u;
    }
    a ^= b >> 31 | b << 33;
    a = (a ^ a >> 29) * 0x9e3779b97f4a7c15u;
    return a ^ a >> 32;
}

INLINE int alike(const uint8_t *t, const uint8_t *u, int64_t n) {
    for (int64_t k = 0; k < n; k += 16) {
        struct sixteen x = piece(t, k, n), y = piece(u, k, n);
        if (x.low != y.low || x.high != y.high) return 0;
    }
    return 1;
}

/* Characters that are no letters, digits, spaces or marks and have no case: dashes, bullets and dots (U+2010 to U+2027), arrows (U+2190 to U+21FF),
 * what boxes and bars are drawn with (U+2500 to U+25FF). All have three bytes. */
static int drawn(const uint8_t *t, int64_t n) {
    if (n < 3 || t[0] != 0xe2 || t[2] < 0x80 || t[2] > 0xbf) return 0;
    if (t[1] == 0x80) return t[2] >= 0x90 && t[2] <= 0xa7;
    return (t[1] == 0x86 && t[2] >= 0x90) || t[1] == 0x87 || (t[1] >= 0x94 && t[1] <= 0x97);
}

/* A record with its digits as '0' and each drawn character as the byte 128. kind: 0 ASCII, 1 with drawn characters, 2 with others (then what is
 * written is good for nothing but telling literals). Returns the length. */
static int64_t written(const uint8_t *t, int64_t n, uint8_t *out, uint8_t *kind) {
    int64_t m = 0;
    for (int64_t k = 0; k < n; k += 16, m = k < n ? k : n) {
        struct sixteen x = blind(t + k, n - k);
        memcpy(out + k, &x, (size_t)(n - k < 16 ? n - k : 16));
        if ((x.low | x.high) & 0x8080808080808080u) {
            *kind = 1;
            for (m = k; k < n; k++) {
                uint8_t c = t[k];
                if (c >= 128 && drawn(t + k, n - k)) {
                    c = 128, k += 2;
                } else if (c >= 128) {
                    *kind = 2;
                }
                out[m++] = c >= '0' && c <= '9' ? '0' : c;
            }
            return m;
        }
    }
    *kind = 0;
    return m;
}

/* What is known of shapes: a hash table of `size` places, a power of two, and of each shape where a record of it stands in the text. A shape that is
 * crowded out of the table is taken for a new one when it comes again, which costs time only. */
struct known {
    const uint8_t *text;
    uint64_t *table;
    int64_t size, many, *start, *length;
};

enum { PROBES = 8 };

static void forget(struct known *s) {
    s->many = 0;
    memset(s->table, 0, (size_t)s->size * sizeof *s->table);
}

/* The number of a record's shape; it is new where it equals the number of shapes there were. */
INLINE int64_t shape_of(struct known *s, int64_t start, int64_t length) {
    const uint64_t h = hashed(s->text + start, length), tag = h & 0xffffffff00000000u;
    for (uint64_t probe = 0; probe < PROBES; probe++) {
        uint64_t *place = s->table + ((h + probe) & (uint64_t)(s->size - 1));
        if (!*place) {
            *place = tag | (uint64_t)(s->many + 1);
            break;
        }
        int64_t one = (int64_t)(*place & 0xffffffffu) - 1;
        if ((*place & 0xffffffff00000000u) == tag && s->length[one] == length && alike(s->text + start, s->text + s->start[one], length)) return one;
    }
    s->start[s->many] = start, s->length[s->many] = length;
    return s->many++;
}

/* The shape of each record. digest: each shape once, with a line feed behind it, at most text and a byte for each record long. sample, length: where
 * a record that has it starts, and how long it is. Returns the number of shapes. */
int64_t shapes(const uint8_t *text, int64_t n, const int64_t *start, const int64_t *stop, uint64_t *table, int64_t size, int64_t *shape,
               int64_t *sample, int64_t *length, uint8_t *digest, int64_t *begin, int64_t *end, uint8_t *kind) {
    struct known s = {text, table, size, 0, sample, length};
    int64_t used = 0;
    forget(&s);
    for (int64_t k = 0; k < n; k++) {
        int64_t new = s.many, one = shape[k] = shape_of(&s, start[k], stop[k] - start[k]);
        if (one < new) continue;
        begin[one] = used;
        used += written(text + start[k], length[one], digest + used, kind + one);
        end[one] = used;
        digest[used++] = '\n';
    }
    return s.many;
}

/* The records of a text, each with its line feed, by shape. of, stop: shape and place of the line feed of each of *n records. digest: each shape
 * once, with its digits as '0' and a line feed behind it; end: where that line feed stands. Returns the number of shapes, or -1 where there are
 * more than `most`, they need more than `room` bytes, or the records are more than `records`. */
int64_t sorted(const uint8_t *text, int64_t size, uint64_t *table, int64_t places, int64_t most, int64_t room, int64_t records, int32_t *of, int64_t *stop,
               int64_t *n, int64_t *sample, int64_t *length, uint8_t *digest, int64_t *end) {
    struct known s = {text, table, places, 0, sample, length};
    int64_t used = 0;
    forget(&s);
    for (int64_t at = 0, k = *n = 0; at < size; at = stop[k++] + 1, *n = k) {
        if (k == records) return -1;
        const uint8_t *feed = memchr(text + at, '\n', (size_t)(size - at));
        stop[k] = feed ? feed - text : size;
        int64_t new = s.many, one = shape_of(&s, at, stop[k] - at);
        of[k] = (int32_t)one;
        if (one < new) continue;
        if (s.many > most || used + length[one] >= room) return -1;
        write_blind(text + at, length[one], digest + used);
        used += length[one];
        end[one] = used;
        digest[used++] = '\n';
    }
    return s.many;
}

/* Marks the records in which something ends. doubt: shapes whose records alone are marked. */
void marked(int64_t n, const int64_t *stop, const int32_t *of, const uint8_t *doubt, const int64_t *ends, int64_t many, uint8_t *apart) {
    for (int64_t i = 0; i < many; i++) {
        int64_t low = 0, high = n;
        while (low < high) {
            int64_t middle = (low + high) / 2;
            if (stop[middle] < ends[i]) low = middle + 1;
            else high = middle;
        }
        if (low < n) apart[low] |= doubt[of[low]];
    }
}

/* One record for all of a shape, but those marked, and all records of the shapes marked, in the order of the text. at: a place for each shape. out:
 * the records; of each: `end` where its line feed stands in `out`, its shape, how many it stands for, and where the first and the last of them
 * end in the text. Returns their number, or -1 where they need more than `room` bytes. */
int64_t gathered(const uint8_t *text, int64_t n, const int64_t *stop, const int32_t *of, const uint8_t *apart, const uint8_t *split, int64_t many,
                 int64_t *at, uint8_t *out, int64_t room, int64_t *end, int32_t *shape, int64_t *count, int64_t *first, int64_t *last) {
    int64_t made = 0, used = 0;
    for (int64_t s = 0; s < many; s++) at[s] = -1;
    for (int64_t k = 0; k < n; k++) {
        int32_t s = of[k];
        int alone = apart[k] || split[s];
        if (!alone && at[s] >= 0) {
            count[at[s]]++, last[at[s]] = stop[k];
            continue;
        }
        int64_t start = k ? stop[k - 1] + 1 : 0, length = stop[k] - start;
        if (used + length >= room) return -1;
        memcpy(out + used, text + start, (size_t)length);
        used += length;
        out[used] = '\n';
        end[made] = used++, shape[made] = s, count[made] = 1, first[made] = last[made] = stop[k];
        if (!alone) at[s] = made;
        made++;
    }
    return made;
}

/* Places in characters of records (beginning at `start`) -> places in bytes; those below 0 stay. */
void widened(const uint8_t *text, int64_t n, const int64_t *start, int64_t *place) {
    for (int64_t k = 0; k < n; k++) {
        int64_t at = 0;
        for (int64_t left = place[k]; left > 0; left--, at++)
            if (text[start[k] + at] >= 128) at += 2;
        if (place[k] >= 0) place[k] = at;
    }
}

static int64_t digits(const uint8_t *t, int64_t at, int64_t stop) {
    int64_t value = 0;
    for (; at < stop; at++) value = 10 * value + (t[at] - '0');
    return value;
}

/* Days since 1970-01-01, counted from March on, as `engine.stamps` does. */
static int64_t days(int64_t year, int64_t month, int64_t day) {
    int64_t y = year - (month <= 2), m = (month + 9) % 12;
    return 365 * y + y / 4 - y / 100 + y / 400 + (153 * m + 2) / 5 + day - 719469;
}

enum { YEAR, MONTH, DAY, HOUR, MINUTE, SECOND, FRACTION, ZONE, PARTS };

/* Microseconds UTC of records whose shape may hold a date. part: of each shape, where year to zone start and stop behind the start of a record, -1
 * where there is none. state: FOUND; NO_DATE where month or day are none; LEFT where the digits are not those of a date, so another place of the
 * record may be one. */
void dates(const uint8_t *text, int64_t n, const int64_t *start, const int64_t *shape, const int64_t *part, int64_t *us, uint8_t *state) {
    static const char FIRST[] = {'9', '1', '3', '2', '5', '6'};
    for (int64_t k = 0; k < n; k++) {
        const uint8_t *t = text + start[k];
        const int64_t *p = part + 2 * PARTS * shape[k];
        int good = (t[p[0]] == '1' && t[p[0] + 1] == '9') || (t[p[0]] == '2' && t[p[0] + 1] == '0');
        for (int x = MONTH; x <= SECOND; x++) good &= t[p[2 * x]] <= FIRST[x];
        us[k] = 0, state[k] = LEFT;
        if (!good) continue;
        int64_t v[FRACTION];
        for (int x = YEAR; x < FRACTION; x++) v[x] = digits(t, p[2 * x], p[2 * x + 1]);
        int64_t seconds = v[HOUR] * 3600 + v[MINUTE] * 60 + v[SECOND], fraction = 0;
        for (int64_t at = p[2 * FRACTION], m = 0; p[2 * FRACTION] >= 0 && m < 6; at++, m++)
            fraction = 10 * fraction + (at < p[2 * FRACTION + 1] ? t[at] - '0' : 0);
        int64_t zone = p[2 * ZONE], end = p[2 * ZONE + 1];
        if (zone >= 0 && end - zone > 1) {
            int64_t minutes = digits(t, zone + 1, zone + 3) * 60 + digits(t, end - 2, end);
            seconds -= 60 * (t[zone] == '-' ? -minutes : minutes);
        }
        us[k] = (days(v[YEAR], v[MONTH], v[DAY]) * 86400 + seconds) * 1000000 + fraction;
        state[k] = v[MONTH] >= 1 && v[MONTH] <= 12 && v[DAY] >= 1 && v[DAY] <= 31 ? FOUND : NO_DATE;
    }
}
