/* test_pager_threads.c: the pager's suite with the method "threads". */
#include "method.h"

#define METHOD         (&hl_method_threads)
#define METHOD_BEGIN() ((void)0)
#include "pager_case.h"

#include "pager_requests.h"
#include "pager_durable.h"
#include "pager_kept.h"
#include "pager_errors.h"
