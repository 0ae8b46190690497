/* test_engine_schedules.c: 200 fault schedules over the engine. */
#define NSEEDS 200
#include "engine_schedules.h"
