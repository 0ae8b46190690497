/* test_pager_model_long.c: 10,000 fault schedules against the model. */
#define NSCHEDULES 10000u
#define INNER_METHODS                                                                              \
    {                                                                                              \
        &hl_method_threads, &hl_method_uring                                                       \
    }
#include "pager_model.h"
