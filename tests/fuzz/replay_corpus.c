/* replay_corpus.c: a fuzz target once over every file of a folder, without libFuzzer. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv);

/* A target need not have one. */
__attribute__((weak)) int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    return 0;
}

/* 1, or 0 for what is no file. */
static int replay(const char *folder, const char *name)
{
    static uint8_t data[1 << 20];
    char path[4096];
    FILE *f;
    size_t n;

    snprintf(path, sizeof path, "%s/%s", folder, name);
    f = name[0] == '.' ? NULL : fopen(path, "rb");
    if (f == NULL)
        return 0;
    n = fread(data, 1, sizeof data, f);
    fclose(f);
    LLVMFuzzerTestOneInput(data, n);
    return 1;
}

int main(int argc, char **argv)
{
    DIR *dir = argc > 1 ? opendir(argv[1]) : NULL;
    struct dirent *entry;
    int n = 0;

    if (dir == NULL) {
        fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
        return 2;
    }
    LLVMFuzzerInitialize(&argc, &argv);
    while ((entry = readdir(dir)) != NULL)
        n += replay(argv[1], entry->d_name);
    closedir(dir);
    printf("%d inputs\n", n);
    return n == 0;
}
