/* test_pager_kill.c: 10 kills, and 10 power cuts. */
#define NKILLS 10u
#include "pager_kill.h"
