/* Tells which records differ in their digits only, and reads dates out of such records, without entering Python for each of them.
 *
 * Records that differ in their digits only have one shape, and a program (see fields.c) that does not ask which digit stands somewhere finds the
 * same in all of them: so each shape is written once, for the programs to run on.
 */
#include <stdint.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

enum { NONE, FOUND, LEFT, NO_DATE };

struct sixteen {
    uint64_t low, high;
};

/* At most sixteen bytes with every digit as '0', and NULs behind them. */
static struct sixteen blind(const uint8_t *t, int64_t n) {
    uint8_t some[16] = {0};
    struct sixteen out;
    if (n < 16) {
        memcpy(some, t, (size_t)n);
        t = some;
    }
#ifdef __SSE2__
    const __m128i x = _mm_loadu_si128((const __m128i *)t), zero = _mm_set1_epi8('0');
    const __m128i d = _mm_sub_epi8(x, zero), digit = _mm_cmpeq_epi8(_mm_min_epu8(d, _mm_set1_epi8(9)), d);
    __m128i y = _mm_or_si128(_mm_and_si128(digit, zero), _mm_andnot_si128(digit, x));
    memcpy(&out, &y, 16);
#else
    uint8_t y[16];
    for (int k = 0; k < 16; k++) y[k] = t[k] >= '0' && t[k] <= '9' ? '0' : t[k];
    memcpy(&out, y, 16);
#endif
    return out;
}

static uint64_t hashed(const uint8_t *t, int64_t n) {
    uint64_t a = (uint64_t)n, b = 0x9e3779b97f4a7c15u;
    for (int64_t k = 0; k < n; k += 16) {
        struct sixteen x = blind(t + k, n - k);
        a = (a ^ x.low) * 0xff51afd7ed558ccdu;
        b = (b ^ x.high) * 0xc4ceb9fe1a85ec53u;
    }
    a ^= b >> 31 | b << 33;
    a = (a ^ a >> 29) * 0x9e3779b97f4a7c15u;
    return a ^ a >> 32;
}

static int alike(const uint8_t *t, const uint8_t *u, int64_t n) {
    for (int64_t k = 0; k < n; k += 16) {
        struct sixteen x = blind(t + k, n - k), y = blind(u + k, n - k);
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

enum { PROBES = 8 };

/* The shape of each record. table: `size` places, a power of two, for finding shapes again; one that is crowded out is written twice, which costs
 * time only. digest: each shape once, with a line feed behind it, at most text and a byte for each record long. first: a record that has it.
 * Returns the number of shapes. */
int64_t shapes(const uint8_t *text, int64_t n, const int64_t *start, const int64_t *stop, uint64_t *table, int64_t size, int64_t *shape,
               int64_t *first, uint8_t *digest, int64_t *begin, int64_t *end, uint8_t *kind) {
    int64_t many = 0, used = 0;
    memset(table, 0, (size_t)size * sizeof *table);
    for (int64_t k = 0; k < n; k++) {
        const uint8_t *t = text + start[k];
        int64_t length = stop[k] - start[k], free = -1, found = -1;
        uint64_t h = hashed(t, length), tag = h & 0xffffffff00000000u;
        for (int probe = 0; probe < PROBES && found < 0; probe++) {
            int64_t place = (int64_t)((h + (uint64_t)probe) & (uint64_t)(size - 1));
            if (!table[place]) {
                free = place;
                break;
            }
            int64_t one = (int64_t)(table[place] & 0xffffffffu) - 1;
            if ((table[place] & 0xffffffff00000000u) != tag || stop[first[one]] - start[first[one]] != length) continue;
            if (alike(t, text + start[first[one]], length)) found = one;
        }
        if (found < 0) {
            found = many++;
            if (free >= 0) table[free] = tag | (uint64_t)(found + 1);
            first[found] = k;
            begin[found] = used;
            used += written(t, length, digest + used, kind + found);
            end[found] = used;
            digest[used++] = '\n';
        }
        shape[k] = found;
    }
    return many;
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
