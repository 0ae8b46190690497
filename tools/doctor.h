/*
 * doctor.h: what haul doctor finds, one line a check.
 *
 * A check calls hl_doctor_add() once or more. ok: nothing to do. warn: haul works, but slower or with
 * a fallback. fail: what was asked for cannot work here.
 */
#ifndef HL_DOCTOR_H
#define HL_DOCTOR_H

#include "haul/error.h"

enum hl_health { HL_HEALTH_OK = 0, HL_HEALTH_WARN, HL_HEALTH_FAIL, HL_NHEALTH };

struct hl_finding {
    char name[32];
    enum hl_health health;
    char text[320];
    char remedy[320]; /* "" when there is nothing to do */
};

#define HL_DOCTOR_MAX 256

struct hl_doctor {
    struct hl_finding finding[HL_DOCTOR_MAX];
    unsigned nfindings;
};

/* remedy: NULL or "" for none. */
void hl_doctor_add(struct hl_doctor *doc, const char *name, enum hl_health health,
                   const char *remedy, const char *fmt, ...) HAUL_PRINTF(5, 6);

/* doctor_machine.c: kernel, io_uring, memlock, pages, NUMA, cgroup, optimizer */
void hl_doctor_machine(struct hl_doctor *doc);
/* doctor_gpu.c: driver and devices, through dlopen */
void hl_doctor_gpu(struct hl_doctor *doc);
/* doctor_dir.c: the file system behind a directory that is to hold a store. 1: a store can be tried
 * there; 0: it failed. */
int hl_doctor_dir(struct hl_doctor *doc, const char *dir);

#endif
