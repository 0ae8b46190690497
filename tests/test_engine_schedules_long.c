/* test_engine_schedules_long.c: 5,000 fault schedules over the engine. */
#define NSEEDS 5000
#include "engine_schedules.h"
