/* doctor_io.h: what the pager finds when it is really used in a directory. */
#ifndef HL_DOCTOR_IO_H
#define HL_DOCTOR_IO_H

#include "doctor.h"

/* Opens a small scratch store in dir with each method, moves data, and reports method, direct I/O,
 * alignment, registration, huge pages, and the drive with its wear. Leaves nothing behind. */
void hl_doctor_io(struct hl_doctor *doc, const char *dir);

#endif
