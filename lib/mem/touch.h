/* touch.h: all pages of a range made resident, by several threads. */
#ifndef HL_TOUCH_H
#define HL_TOUCH_H

#include <stdint.h>

/* Make every page of [base, base+bytes) resident and writable without changing what it holds. A page
 * that the system refuses is -ENOMEM here instead of a signal later. */
int hl_touch(char *base, uint64_t bytes, unsigned nthreads);

/* Ask for 2 MiB pages where the range is on small ones. Best effort: what the kernel will not give
 * stays as it is; only a failure to start threads is reported. */
int hl_collapse(char *base, uint64_t bytes, unsigned nthreads);

#endif
