/* test_pager_model.c: 200 fault schedules against the model. */
#define NSCHEDULES 200u
#define INNER_METHODS                                                                              \
    {                                                                                              \
        &hl_method_threads, &hl_method_uring                                                       \
    }
#include "pager_model.h"
