/* wear.h: what a drive says about its own life. */
#ifndef HL_WEAR_H
#define HL_WEAR_H

#include <stdint.h>

#include "haul/pager.h"

/* The SMART log of an NVMe drive (log page 2, 512 bytes). */
struct hl_smart {
    uint64_t written_bytes;
    double used_fraction; /* may exceed 1 */
};
void hl_smart_decode(const uint8_t log[512], struct hl_smart *out);

/* Name, model and kind of the drive under an open directory, from sys_root ("/sys"); tests point at a
 * recorded tree. The name stays "" when there is no drive. */
void hl_drive_find(const char *sys_root, uint32_t major, uint32_t minor, struct haul_wear *out);

/* Fill rated_bytes, used_fraction and life_left_s from what is known; smart may be NULL. */
void hl_wear_project(struct haul_wear *w, const struct hl_smart *smart, uint64_t rated_bytes,
                     uint64_t store_written_bytes);

#endif
