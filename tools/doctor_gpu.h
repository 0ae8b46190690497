/* doctor_gpu.h: what sysfs says of a GPU, kept apart from the driver so that recorded trees can be read. */
#ifndef HL_DOCTOR_GPU_H
#define HL_DOCTOR_GPU_H

#include <stdint.h>

#include "doctor.h"

/* Of one device; 0 or -1: not said. */
struct hl_gpu_slot {
    double gt_per_s, best_gt_per_s; /* of a lane of the link, now and at best */
    int width, best_width;          /* lanes */
    uint64_t bar_bytes;             /* of the largest window onto the device's memory */
    int numa_node;                  /* -1: none */
};

/* pci: as the driver says it ("0000:65:00.0", any case); root: "/sys". */
void hl_gpu_slot_read(const char *root, const char *pci, struct hl_gpu_slot *out);

/* What is wrong with the slot, and its remedy. mem_bytes: of the device. */
void hl_gpu_slot_findings(struct hl_doctor *doc, int ordinal, const struct hl_gpu_slot *slot,
                          uint64_t mem_bytes);

/* PCIe generation of a lane's rate, 0 when it is none: 16 GT/s is 4. */
int hl_gpu_pcie_generation(double gt_per_s);

#endif
