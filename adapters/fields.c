/* Takes fields out of records: runs small pattern programs over them and reads plain numbers, without entering Python for each record.
 *
 * Programs come from `engine/fields.py`, which makes them of the regular expressions of progress formats. A program backtracks, so it finds what
 * the expression finds: the leftmost match, earlier alternatives first. Its work is bounded: a record on which a program takes too long, or that
 * holds a byte beyond ASCII, is LEFT to the caller, who has another way to read it.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

enum { MATCH, CHAR, SET, SPLIT, JUMP, SAVE, BEGIN, END, WORD_EDGE, NO_WORD_EDGE, GREEDY, LAZY, TEXT };
enum { NONE, FOUND, LEFT };
enum { BRANCH, RESTORE, SHORTER, LONGER };
enum { STACK = 2048, STEPS = 20000, STEPS_PER_BYTE = 16, SLOTS = 64 };

/* code: instructions of four numbers each: operation, and three operands. sets: 32 bytes each, a bit per byte value. texts: literals, one after
 * another. run: of a program that begins with one character and any number of a set, that set; else -1. first: 256 bytes, whether a match can begin with that byte. A match begins with `prefix` where that is not empty, and holds `needed`. */
struct program {
    const int32_t *code;
    const uint8_t *sets, *texts, *first, *prefix, *needed;
    int64_t prefix_length, needed_length;
    int32_t slots, anchored, empty, run;
};

struct frame {
    int32_t kind, pc;
    int64_t at, bound;
};

static int in_set(const struct program *p, int32_t set, uint8_t c) { return p->sets[32 * (int64_t)set + (c >> 3)] >> (c & 7) & 1; }

/* The first place of a literal, or NULL: sixteen places at a time by its first and last byte, where the processor can. */
static const uint8_t *find(const uint8_t *t, int64_t n, const uint8_t *literal, int64_t m) {
    if (m > n) return NULL;
#ifdef __SSE2__
    if (m > 1 && n >= m + 15) {
        const __m128i first = _mm_set1_epi8((char)literal[0]), last = _mm_set1_epi8((char)literal[m - 1]);
        int64_t final = n - m - 15;
        for (int64_t i = 0;; i = i + 16 < final ? i + 16 : final) {
            __m128i a = _mm_cmpeq_epi8(first, _mm_loadu_si128((const __m128i *)(t + i)));
            __m128i b = _mm_cmpeq_epi8(last, _mm_loadu_si128((const __m128i *)(t + i + m - 1)));
            for (unsigned both = (unsigned)_mm_movemask_epi8(_mm_and_si128(a, b)); both; both &= both - 1) {
                const uint8_t *here = t + i + __builtin_ctz(both);
                if (!memcmp(here + 1, literal + 1, (size_t)(m - 1))) return here;
            }
            if (i == final) return NULL;
        }
    }
#endif
    return memmem(t, (size_t)n, literal, (size_t)m);
}

static int wordly(uint8_t c) { return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_'; }

static int edge(const uint8_t *t, int64_t at, int64_t start, int64_t stop) {
    return (at > start && wordly(t[at - 1])) != (at < stop && wordly(t[at]));
}

/* Whether what follows a repeat can begin here; `next` is a set, or -1 where nothing is known. */
static int may_follow(const struct program *p, int32_t next, const uint8_t *t, int64_t at, int64_t stop) {
    return next < 0 || (at < stop && in_set(p, next, t[at]));
}

/* Match at one place. slots: begins and ends of groups, -1 where a group takes no part. */
static int match(const struct program *p, const uint8_t *t, int64_t start, int64_t stop, int64_t at, int64_t *slots, int64_t *steps) {
    struct frame stack[STACK];
    int depth = 0;
    int32_t pc = 0;
    for (;;) {
        const int32_t *i = p->code + 4 * (int64_t)pc;
        int ok = 1;
        if (--*steps < 0 || depth >= STACK - 2) return LEFT;
        switch (i[0]) {
        case MATCH:
            return FOUND;
        case CHAR:
            ok = at < stop && t[at] == i[1];
            at += ok, pc++;
            break;
        case SET:
            ok = at < stop && in_set(p, i[1], t[at]);
            at += ok, pc++;
            break;
        case TEXT:
            ok = stop - at >= i[2] && !memcmp(t + at, p->texts + i[1], (size_t)i[2]);
            at += ok ? i[2] : 0, pc++;
            break;
        case SPLIT: /* the third operand: what the first way can begin with */
            if (!may_follow(p, i[3], t, at, stop)) {
                pc = i[2];
                break;
            }
            stack[depth++] = (struct frame){BRANCH, i[2], at, 0};
            pc = i[1];
            break;
        case JUMP:
            pc = i[1];
            break;
        case SAVE:
            stack[depth++] = (struct frame){RESTORE, i[1], slots[i[1]], 0};
            slots[i[1]] = at, pc++;
            break;
        case BEGIN:
            ok = at == start, pc++;
            break;
        case END:
            ok = at == stop, pc++;
            break;
        case WORD_EDGE:
            ok = edge(t, at, start, stop), pc++;
            break;
        case NO_WORD_EDGE:
            ok = !edge(t, at, start, stop), pc++;
            break;
        default: { /* GREEDY, LAZY: set, least and most (-1: any number); what may follow stands in the instruction behind */
            int32_t set = i[1], next = i[5];
            int64_t far = i[3] >= 0 && i[3] < stop - at ? at + i[3] : stop, low = at + i[2], to = at;
            if (low > far) {
                ok = 0;
                break;
            }
            while (to < (i[0] == GREEDY ? far : low) && in_set(p, set, t[to])) to++;
            if (to < low) {
                ok = 0;
            } else if (i[0] == GREEDY) {
                *steps -= (to - at) / 8;
                while (to > low && !may_follow(p, next, t, to, stop)) to--;
                ok = may_follow(p, next, t, to, stop);
                if (ok && to > low) stack[depth++] = (struct frame){SHORTER, pc, to, low};
            } else {
                while (to < far && !may_follow(p, next, t, to, stop) && in_set(p, set, t[to])) to++;
                *steps -= (to - low) / 8;
                ok = may_follow(p, next, t, to, stop);
                if (ok && to < far) stack[depth++] = (struct frame){LONGER, pc, to, far};
            }
            at = to, pc += 2;
        }
        }
        while (!ok) { /* go back to the last choice */
            if (!depth) return NONE;
            struct frame f = stack[--depth];
            const int32_t *r = p->code + 4 * (int64_t)f.pc;
            int64_t to = f.at;
            --*steps;
            switch (f.kind) {
            case RESTORE:
                slots[f.pc] = f.at;
                break;
            case BRANCH:
                pc = f.pc, at = f.at, ok = 1;
                break;
            case SHORTER:
                do to--;
                while (to > f.bound && !may_follow(p, r[5], t, to, stop));
                *steps -= (f.at - to) / 8;
                if (may_follow(p, r[5], t, to, stop)) {
                    if (to > f.bound) stack[depth++] = (struct frame){SHORTER, f.pc, to, f.bound};
                    pc = f.pc + 2, at = to, ok = 1;
                }
                break;
            case LONGER:
                do {
                    if (to >= f.bound || !in_set(p, r[1], t[to])) {
                        to = -1;
                        break;
                    }
                    to++;
                } while (!may_follow(p, r[5], t, to, stop));
                if (to >= 0) {
                    *steps -= (to - f.at) / 8;
                    if (to < f.bound) stack[depth++] = (struct frame){LONGER, f.pc, to, f.bound};
                    pc = f.pc + 2, at = to, ok = 1;
                }
                break;
            }
            if (*steps < 0) return LEFT;
        }
    }
}

static int search_one(const struct program *p, const uint8_t *t, int64_t start, int64_t stop, int64_t from, int64_t *slots, int64_t *where) {
    int64_t steps = STEPS + STEPS_PER_BYTE * (stop - start);
    if (p->needed_length && !p->prefix_length && !find(t + start, stop - start, p->needed, p->needed_length)) return NONE;
    for (int64_t at = from; at <= stop; at++) {
        if (p->prefix_length) {
            const uint8_t *found = find(t + at, stop - at, p->prefix, p->prefix_length);
            if (!found) return NONE;
            at = found - t;
        } else if (!p->anchored && !p->empty) {
            while (at < stop && !p->first[t[at]]) at++;
            if (at == stop) return NONE;
        }
        if (p->anchored && at > start) return NONE;
        for (int k = 0; k < p->slots; k++) slots[k] = -1;
        *where = at;
        int found = match(p, t, start, stop, at, slots, &steps);
        if (found) return found;
        if (p->run >= 0) { /* from a later place of the same run all the same ways would be tried, and fewer */
            at++;
            while (at < stop && in_set(p, p->run, t[at])) at++;
            at--;
        }
    }
    return NONE;
}

/* state: FOUND, NONE or LEFT of each record. spans: `slots` places in the text for each record, -1 where a group took no part. from: where
 * matches may begin, or NULL; afterwards, where the match begins. */
void search(const struct program *p, const uint8_t *text, int64_t n, const int64_t *start, const int64_t *stop, int64_t *from, uint8_t *state,
            int64_t *spans) {
    int64_t slots[SLOTS], where = 0;
    for (int64_t k = 0; k < n; k++) {
        state[k] = (uint8_t)search_one(p, text, start[k], stop[k], from ? from[k] : start[k], slots, &where);
        if (from) from[k] = where;
        for (int s = 0; s < p->slots; s++) spans[k * p->slots + s] = state[k] == FOUND ? slots[s] : -1;
    }
}

/* Which records hold a literal. stop: where each ends; the first one begins with the text. */
void holding(const uint8_t *text, int64_t n, const int64_t *stop, const uint8_t *literal, int64_t length, uint8_t *holds) {
    memset(holds, 0, (size_t)n);
    for (int64_t at = 0, k = 0; n && at < stop[n - 1];) {
        const uint8_t *found = find(text + at, stop[n - 1] - at, literal, length);
        if (!found) return;
        while (stop[k] < found - text) k++;
        holds[k] = 1;
        at = stop[k];
    }
}

/* Whether a literal stands anywhere. */
int has(const uint8_t *text, int64_t size, const uint8_t *literal, int64_t length) { return find(text, size, literal, length) != NULL; }

static const double TENS[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                              1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};

/* `-12.5e-3` and the like, exactly where both parts fit a double without rounding (then one division or product rounds once). */
static int number(const uint8_t *t, int64_t at, int64_t stop, double *out) {
    int minus = at < stop && t[at] == '-', digits = 0;
    uint64_t value = 0;
    int64_t power = 0;
    at += minus;
    for (; at < stop && t[at] >= '0' && t[at] <= '9'; at++, digits++) {
        if (value > 900000000000000) return 0;
        value = 10 * value + (t[at] - '0');
    }
    if (!digits) return 0;
    if (at < stop && t[at] == '.') {
        int64_t point = ++at;
        for (; at < stop && t[at] >= '0' && t[at] <= '9'; at++, power--) {
            if (value > 900000000000000) return 0;
            value = 10 * value + (t[at] - '0');
        }
        if (at == point) return 0;
    }
    if (at < stop && (t[at] == 'e' || t[at] == 'E')) {
        int64_t sign = 1, e = 0;
        if (++at < stop && (t[at] == '-' || t[at] == '+')) sign = t[at++] == '-' ? -1 : 1;
        if (at == stop || stop - at > 4) return 0;
        for (; at < stop && t[at] >= '0' && t[at] <= '9'; at++) e = 10 * e + (t[at] - '0');
        power += sign * e;
    }
    if (at != stop || power < -22 || power > 22) return 0;
    double x = (double)value;
    x = power < 0 ? x / TENS[-power] : x * TENS[power];
    *out = minus ? -x : x;
    return 1;
}

/* Numbers of n pieces of the text. state: FOUND where it is read, NONE where there is no piece (its start is -1), LEFT where it is written in
 * another way. */
void numbers(const uint8_t *text, int64_t n, const int64_t *start, const int64_t *stop, double *value, uint8_t *state) {
    for (int64_t k = 0; k < n; k++) {
        value[k] = 0;
        state[k] = start[k] < 0 ? NONE : number(text, start[k], stop[k], value + k) ? FOUND : LEFT;
    }
}

/* The same of records of known shapes: `many` pieces of each. part: of each shape, where its pieces start and stop behind the start of a record, -1
 * where there is none. value, state: a row of n for each piece. */
void cells(const uint8_t *text, int64_t n, const int64_t *start, const int64_t *shape, const int64_t *part, int64_t many, double *value,
           uint8_t *state) {
    for (int64_t k = 0; k < n; k++) {
        const int64_t *p = part + 2 * many * shape[k];
        for (int64_t x = 0; x < many; x++, p += 2) {
            double *to = value + x * n + k;
            *to = 0;
            state[x * n + k] = p[0] < 0 ? NONE : number(text + start[k], p[0], p[1], to) ? FOUND : LEFT;
        }
    }
}
