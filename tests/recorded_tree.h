/* recorded_tree.h: small /proc and cgroup trees in a temporary directory, as a machine would show them. */
#ifndef HAUL_TESTS_RECORDED_TREE_H
#define HAUL_TESTS_RECORDED_TREE_H

#include <ftw.h>
#include <sys/stat.h>
#include <unistd.h>

#include "suite.h"

struct tree {
    char root[64];
};

static inline struct tree tree_make(void)
{
    struct tree t = {"/tmp/haul-tree-XXXXXX"};

    cr_assert_not_null(mkdtemp(t.root), "mkdtemp");
    return t;
}

/* Where path ("cgroup/cpu.max") lies; static storage, four at a time. */
static inline const char *tree_path(const struct tree *t, const char *path)
{
    static char full[4][512];
    static unsigned next;
    char *out = full[next++ % 4];

    snprintf(out, sizeof full[0], "%s/%s", t->root, path);
    return out;
}

/* Write text to path, making the directories above it. */
static inline void tree_write(const struct tree *t, const char *path, const char *text)
{
    char full[512];
    FILE *f;

    snprintf(full, sizeof full, "%s/%s", t->root, path);
    for (char *p = full + strlen(t->root) + 1; (p = strchr(p, '/')); p++) {
        *p = '\0';
        mkdir(full, 0755);
        *p = '/';
    }
    f = fopen(full, "w");
    cr_assert_not_null(f, "%s", full);
    fputs(text, f);
    fclose(f);
}

static inline int tree_remove_one(const char *path, const struct stat *st, int type,
                                  struct FTW *ftw)
{
    (void)st;
    (void)type;
    (void)ftw;
    return remove(path);
}

static inline void tree_remove(const struct tree *t)
{
    nftw(t->root, tree_remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

#endif
