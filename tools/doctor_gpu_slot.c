/* doctor_gpu_slot.c: the PCIe slot of a GPU, from sysfs: link, window onto its memory, NUMA node. */
#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "doctor_gpu.h"
#include "haul/size.h"
#include "sys.h"

#define TEXT_BYTES 4096

/* The device's file as text; "" when there is none. */
static void read_file(const char *root, const char *pci, const char *file, char text[TEXT_BYTES])
{
    char path[512], id[32];
    size_t n = 0;

    for (; pci[n] && n + 1 < sizeof id; n++)
        id[n] = (char)tolower((unsigned char)pci[n]);
    id[n] = '\0';
    snprintf(path, sizeof path, "%s/bus/pci/devices/%s/%s", root, id, file);
    if (hl_sys_probe_text(path, text, TEXT_BYTES) < 0)
        text[0] = '\0';
}

static double number(const char *root, const char *pci, const char *file, double absent)
{
    char text[TEXT_BYTES], *end;
    double value;

    read_file(root, pci, file, text);
    value = strtod(text, &end);
    return end == text ? absent : value;
}

/* A line of "resource" is a range: start, end, flags. */
static uint64_t largest_window(const char *root, const char *pci)
{
    char text[TEXT_BYTES], *line, *rest = NULL;
    uint64_t start, end, most = 0;

    read_file(root, pci, "resource", text);
    for (line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
        if (sscanf(line, "%" SCNx64 " %" SCNx64, &start, &end) == 2 && end > start &&
            end - start + 1 > most)
            most = end - start + 1;
    return most;
}

void hl_gpu_slot_read(const char *root, const char *pci, struct hl_gpu_slot *out)
{
    out->gt_per_s = number(root, pci, "current_link_speed", 0);
    out->best_gt_per_s = number(root, pci, "max_link_speed", 0);
    out->width = (int)number(root, pci, "current_link_width", 0);
    out->best_width = (int)number(root, pci, "max_link_width", 0);
    out->bar_bytes = largest_window(root, pci);
    out->numa_node = (int)number(root, pci, "numa_node", -1);
}

int hl_gpu_pcie_generation(double gt_per_s)
{
    static const double rates[] = {2.5, 5, 8, 16, 32, 64};

    for (int i = 0; i < (int)(sizeof rates / sizeof *rates); i++)
        if (gt_per_s == rates[i])
            return i + 1;
    return 0;
}

static void link_finding(struct hl_doctor *doc, int ordinal, const struct hl_gpu_slot *s)
{
    int now = hl_gpu_pcie_generation(s->gt_per_s), best = hl_gpu_pcie_generation(s->best_gt_per_s);

    if (!s->width || !now) {
        hl_doctor_add(doc, "gpu link", HL_HEALTH_OK, NULL,
                      "%d: the system does not say how it is connected", ordinal);
        return;
    }
    /* An idle link falls back to a lower generation; its width does not change. */
    hl_doctor_add(doc, "gpu link", s->width < s->best_width ? HL_HEALTH_WARN : HL_HEALTH_OK,
                  s->width < s->best_width
                      ? "fewer lanes than the GPU has: another slot, or the BIOS's bifurcation"
                      : NULL,
                  "%d: PCIe %d.0 x%d now, %d.0 x%d at best%s", ordinal, now, s->width, best,
                  s->best_width, now < best ? " (an idle link slows down)" : "");
}

static void window_finding(struct hl_doctor *doc, int ordinal, const struct hl_gpu_slot *s,
                           uint64_t mem_bytes)
{
    char bar[32];

    if (!s->bar_bytes)
        return;
    /* Copies go through DMA and do not need it; peers that read each other's memory do. */
    hl_doctor_add(doc, "gpu bar", HL_HEALTH_OK, NULL,
                  "%d: %s window onto its memory: resizable BAR %s", ordinal,
                  haul_format_size(s->bar_bytes, bar, sizeof bar),
                  s->bar_bytes >= mem_bytes ? "on" : "off");
}

static void node_finding(struct hl_doctor *doc, int ordinal, const struct hl_gpu_slot *s)
{
    if (s->numa_node >= 0)
        hl_doctor_add(doc, "gpu numa", HL_HEALTH_OK, NULL, "%d: near NUMA node %d", ordinal,
                      s->numa_node);
}

void hl_gpu_slot_findings(struct hl_doctor *doc, int ordinal, const struct hl_gpu_slot *slot,
                          uint64_t mem_bytes)
{
    link_finding(doc, ordinal, slot);
    window_finding(doc, ordinal, slot, mem_bytes);
    node_finding(doc, ordinal, slot);
}
