/* The floor of every scan: Hyperscan in C over a file, with the patterns of a list, one a line. Prints the number of matches and the CPU
 * seconds of reading and scanning alone (compiling is not counted: defib caches its databases too).
 *
 *   hsraw PATTERNS LOG
 */
#include <hs/hs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define BLOCK (1 << 20)
#define MOST 20000

static int count(unsigned id, unsigned long long from, unsigned long long to, unsigned flags, void *n) {
    (void)id, (void)from, (void)to, (void)flags;
    ++*(unsigned long long *)n;
    return 0;
}

int main(int argc, char **argv) {
    static char *patterns[MOST];
    static unsigned ids[MOST], flags[MOST];
    unsigned n = 0;
    char *line = NULL;
    size_t room = 0;
    ssize_t got;
    FILE *f = argc == 3 ? fopen(argv[1], "r") : NULL;
    if (!f) return 2;
    while ((got = getline(&line, &room, f)) > 0 && n < MOST) {
        line[strcspn(line, "\n")] = 0;
        patterns[n] = strdup(line), ids[n] = n, flags[n] = HS_FLAG_MULTILINE, n++;
    }
    hs_database_t *db;
    hs_compile_error_t *error;
    hs_scratch_t *scratch = NULL;
    if (hs_compile_multi((const char *const *)patterns, flags, ids, n, HS_MODE_BLOCK, NULL, &db, &error)) {
        fprintf(stderr, "%s\n", error->message);
        return 2;
    }
    if (hs_alloc_scratch(db, &scratch) || !(f = fopen(argv[2], "rb"))) return 2;
    setvbuf(f, NULL, _IONBF, 0);
    char *buffer = malloc(2 * BLOCK);
    unsigned long long matches = 0;
    size_t kept = 0, read;
    clock_t began = clock();
    while ((read = fread(buffer + kept, 1, BLOCK, f)) > 0) {
        size_t all = kept + read, cut = all;
        while (cut > 0 && buffer[cut - 1] != '\n') cut--;
        if (!cut) cut = all; /* a giant line: where it is cut does not matter for the time */
        hs_scan(db, buffer, (unsigned)cut, 0, scratch, count, &matches);
        kept = all - cut;
        if (kept > BLOCK) kept = 0;
        memmove(buffer, buffer + cut, kept);
    }
    hs_scan(db, buffer, (unsigned)kept, 0, scratch, count, &matches);
    printf("%llu %.6f\n", matches, (double)(clock() - began) / CLOCKS_PER_SEC);
    return 0;
}
