/* time_left.h: what long work says on a terminal: how far it is, how fast, and how long it will still take.
 * train_gpt has it too; it needs nothing of haul. */
#ifndef HL_TIME_LEFT_H
#define HL_TIME_LEFT_H

#include <stddef.h>
#include <stdint.h>

struct hl_time_left {
    const char *what;
    uint64_t total; /* bytes, else pieces of about equal length */
    int bytes;      /* 1: done and total are bytes, and a rate is shown */
    int on;         /* standard error is a terminal */
    int shown;
    uint64_t begun_ns, shown_ns;
};

/* Nothing is said in the first two seconds, and nothing at all where standard error is no terminal. */
void hl_time_left_begin(struct hl_time_left *t, const char *what, uint64_t total, int bytes);
/* So much is done. Cheap: it may be called for every piece. */
void hl_time_left_at(struct hl_time_left *t, uint64_t done);
/* Takes the line away. Also before other lines are written, when at() goes on behind them. */
void hl_time_left_end(struct hl_time_left *t);

/* The line: "tune: 40%, 12 s left". Returns buf. */
const char *hl_time_left_line(const struct hl_time_left *t, uint64_t done, double elapsed_s,
                              char *buf, size_t len);

#endif
