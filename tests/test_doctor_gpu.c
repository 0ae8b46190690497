/* What haul doctor makes of a GPU's slot, from recorded sysfs trees. */
#include <stdarg.h>

#include "doctor_gpu.h"
#include "recorded_tree.h"
#include "suite.h"

#define SLOT "bus/pci/devices/0000:65:00.0/"

static char said[2048];
static int nwarnings;

/* Of cmd_doctor.c, which prints. */
void hl_doctor_add(struct hl_doctor *doc, const char *name, enum hl_health health,
                   const char *remedy, const char *fmt, ...)
{
    size_t at = strlen(said);
    va_list ap;

    nwarnings += health != HL_HEALTH_OK;
    at += (size_t)snprintf(said + at, sizeof said - at, "%s: ", name);
    va_start(ap, fmt);
    at += (size_t)vsnprintf(said + at, sizeof said - at, fmt, ap);
    va_end(ap);
    snprintf(said + at, sizeof said - at, "\n");
}

static void look(const struct tree *t, const char *pci, uint64_t mem_bytes)
{
    struct hl_gpu_slot slot;

    said[0] = '\0';
    nwarnings = 0;
    hl_gpu_slot_read(t->root, pci, &slot);
    hl_gpu_slot_findings(NULL, 0, &slot, mem_bytes);
}

static void says(const char *words)
{
    cr_assert_not_null(strstr(said, words), "\"%s\" is not in: %s", words, said);
}

/* As Linux 6 shows an RTX 4090 in an x8 slot, idle; 24 GiB, resizable BAR off: 256 MiB. */
static struct tree narrow(void)
{
    struct tree t = tree_make();

    tree_write(&t, SLOT "current_link_speed", "2.5 GT/s PCIe\n");
    tree_write(&t, SLOT "max_link_speed", "16.0 GT/s PCIe\n");
    tree_write(&t, SLOT "current_link_width", "8\n");
    tree_write(&t, SLOT "max_link_width", "16\n");
    tree_write(&t, SLOT "numa_node", "1\n");
    tree_write(&t, SLOT "resource",
               "0x00000000a3000000 0x00000000a3ffffff 0x0000000000040200\n"
               "0x0000383fe0000000 0x0000383fefffffff 0x000000000014220c\n"
               "0x0000000000000000 0x0000000000000000 0x0000000000000000\n"
               "0x0000383ff0000000 0x0000383ff1ffffff 0x000000000014220c\n");
    return t;
}

Test(doctor_gpu, a_narrow_link_is_a_warning_that_tells_both)
{
    struct tree t = narrow();

    look(&t, "0000:65:00.0", UINT64_C(24) << 30);
    says("PCIe 1.0 x8 now, 4.0 x16 at best");
    says("idle link slows down");
    says("near NUMA node 1");
    says("268.44 MB window");
    says("resizable BAR off");
    cr_assert_eq(nwarnings, 1, "%s", said);
    tree_remove(&t);
}

Test(doctor_gpu, the_drivers_spelling_of_an_address_is_found_and_a_full_link_is_well)
{
    struct tree t = tree_make();

    tree_write(&t, "bus/pci/devices/0000:0a:00.0/current_link_speed", "32.0 GT/s PCIe\n");
    tree_write(&t, "bus/pci/devices/0000:0a:00.0/max_link_speed", "32.0 GT/s PCIe\n");
    tree_write(&t, "bus/pci/devices/0000:0a:00.0/current_link_width", "16\n");
    tree_write(&t, "bus/pci/devices/0000:0a:00.0/max_link_width", "16\n");
    tree_write(&t, "bus/pci/devices/0000:0a:00.0/numa_node", "-1\n");
    tree_write(&t, "bus/pci/devices/0000:0a:00.0/resource",
               "0x0000380000000000 0x0000381fffffffff 0x000000000014220c\n");
    look(&t, "0000:0A:00.0", UINT64_C(80) << 30);
    says("PCIe 5.0 x16 now, 5.0 x16 at best");
    says("resizable BAR on");
    cr_assert_null(strstr(said, "idle"), "%s", said);
    cr_assert_null(strstr(said, "NUMA"), "%s", said);
    cr_assert_eq(nwarnings, 0, "%s", said);
    tree_remove(&t);
}

Test(doctor_gpu, a_device_that_the_system_hides_is_said_to_be_so)
{
    struct tree t = tree_make();

    look(&t, "0000:65:00.0", 1);
    says("does not say how it is connected");
    cr_assert_eq(nwarnings, 0, "%s", said);
    tree_remove(&t);
}

Test(doctor_gpu, generations_follow_the_rates_of_the_specification)
{
    cr_assert_eq(hl_gpu_pcie_generation(2.5), 1);
    cr_assert_eq(hl_gpu_pcie_generation(8), 3);
    cr_assert_eq(hl_gpu_pcie_generation(16), 4);
    cr_assert_eq(hl_gpu_pcie_generation(64), 6);
    cr_assert_eq(hl_gpu_pcie_generation(0), 0);
}
