/* test_pager_kill_long.c: 200 kills, and 200 power cuts. */
#define NKILLS 200u
#include "pager_kill.h"
