/* Stands for test-backend-ops: the op's name says how it behaves. Its count comes from a shared library beside it. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int cases(void);

int main(int argc, char **argv) {
    const char *op = argc > 3 && !strcmp(argv[1], "test") && !strcmp(argv[2], "-o") ? argv[3] : "";
    if (!strcmp(op, "SILENT")) return 0;
    printf("Testing 1 devices\n\nBackend 1/1: CPU\n");
    fflush(stdout);
    if (!strcmp(op, "CRASH")) raise(SIGSEGV);
    if (!strcmp(op, "HANG")) {
        /* A helper that outlives its parent unless the whole group is ended. */
        pid_t child = fork();
        if (child == 0) for (;;) pause();
        printf("helper %d\n", (int)child);
        fflush(stdout);
        for (;;) pause();
    }
    if (!strcmp(op, "LEAVES")) {
        pid_t child = fork();
        if (child == 0) for (;;) pause();
        printf("helper %d\n", (int)child);
    }
    if (!strcmp(op, "NOCOUNT")) return 0;
    if (!strcmp(op, "SKIPPED")) { printf("  Skipping\n1/1 backends passed\n"); return 0; }
    if (!strcmp(op, "ENV")) printf("  env %s\n", getenv("GGML_TEST") ? getenv("GGML_TEST") : "unset");
    fprintf(stderr, "a line of the other stream\n");
    printf("  X(a=1): not supported [CPU]\n");
    int all = strcmp(op, "NONE") ? cases() : 0;
    int failed = !strcmp(op, "FAILS") || !strcmp(op, "LIES");
    printf("  \033[1;32m%d/%d tests passed\033[0m\n1/1 backends passed\n", all - failed, all);
    fflush(stdout);
    return !strcmp(op, "FAILS") ? 1 : !strcmp(op, "CODE") ? 3 : 0;
}
