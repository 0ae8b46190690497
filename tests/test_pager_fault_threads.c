/* test_pager_fault_threads.c: the pager's suite with "threads" behind a method that cuts transfers short,
 * refuses, delays, reorders and repeats: nothing of that may be seen from outside. */
#include "method_fault.h"

#define METHOD (&hl_method_fault)
#define METHOD_BEGIN()                                                                             \
    hl_fault_arm(&(struct hl_fault_plan){.inner = &hl_method_threads,                              \
                                         .seed = 20,                                               \
                                         .reorder = 1,                                             \
                                         .rate = {[HL_FAULT_SHORT_ALIGNED] = 60,                   \
                                                  [HL_FAULT_SHORT_UNALIGNED] = 60,                 \
                                                  [HL_FAULT_EAGAIN] = 30,                          \
                                                  [HL_FAULT_EINTR] = 30,                           \
                                                  [HL_FAULT_EBUSY] = 30,                           \
                                                  [HL_FAULT_START_REFUSED] = 20,                   \
                                                  [HL_FAULT_DELAY] = 150,                          \
                                                  [HL_FAULT_STALE] = 100}})
#include "pager_case.h"

#include "pager_requests.h"
#include "pager_durable.h"
#include "pager_kept.h"
#include "pager_errors.h"
