/* What valgrind is told from inside the program that it runs. Outside of it, nothing happens. */
#include <valgrind/callgrind.h>

int running(void) { return RUNNING_ON_VALGRIND; }
void begin(void) { CALLGRIND_START_INSTRUMENTATION; CALLGRIND_ZERO_STATS; }
void end(const char *name) { CALLGRIND_DUMP_STATS_AT(name); CALLGRIND_STOP_INSTRUMENTATION; }
