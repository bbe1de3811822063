/* Sixteen bytes at a time with every digit as '0': records that differ in their digits only are one to what looks at them so. */
#include <stdint.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

/* What runs for every record: the compiler would call it, which costs a third more. */
#define INLINE __attribute__((always_inline)) static inline

struct sixteen {
    uint64_t low, high;
};

#ifdef __SSE2__
INLINE __m128i vector(const uint8_t *t) {
    const __m128i x = _mm_loadu_si128((const __m128i *)t), zero = _mm_set1_epi8('0');
    const __m128i d = _mm_sub_epi8(x, zero), digit = _mm_cmpeq_epi8(_mm_min_epu8(d, _mm_set1_epi8(9)), d);
    return _mm_or_si128(_mm_and_si128(digit, zero), _mm_andnot_si128(digit, x));
}
#endif

INLINE struct sixteen blinded(const uint8_t *t) {
    struct sixteen out;
#ifdef __SSE2__
    const __m128i y = vector(t);
#else
    uint8_t y[16];
    for (int k = 0; k < 16; k++) y[k] = t[k] >= '0' && t[k] <= '9' ? '0' : t[k];
#endif
    memcpy(&out, &y, 16);
    return out;
}

/* Whether sixteen bytes equal those that are written blind. */
INLINE int blinded_is(const uint8_t *t, const uint8_t *written) {
#ifdef __SSE2__
    return _mm_movemask_epi8(_mm_cmpeq_epi8(vector(t), _mm_loadu_si128((const __m128i *)written))) == 0xffff;
#else
    struct sixteen x = blinded(t);
    return !memcmp(&x, written, 16);
#endif
}

/* At most sixteen bytes, and NULs behind them. */
INLINE struct sixteen blind(const uint8_t *t, int64_t n) {
    uint8_t some[16] = {0};
    if (n < 16) {
        memcpy(some, t, (size_t)n);
        t = some;
    }
    return blinded(t);
}

/* The sixteen from the k-th byte of a text on, or its last ones: those overlap where the text is long enough, which costs less than cutting. */
INLINE struct sixteen piece(const uint8_t *t, int64_t k, int64_t n) {
    if (k + 16 <= n) return blinded(t + k);
    return n < 16 ? blind(t, n) : blinded(t + n - 16);
}

/* A text of n bytes, all of it. */
INLINE void write_blind(const uint8_t *t, int64_t n, uint8_t *out) {
    for (int64_t k = 0; k < n; k += 16) {
        struct sixteen x = blind(t + k, n - k);
        memcpy(out + k, &x, (size_t)(n - k < 16 ? n - k : 16));
    }
}
