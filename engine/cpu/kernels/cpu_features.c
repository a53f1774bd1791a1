/* What this processor can run: CPUID and XGETBV on x86-64, the system's answers on aarch64. */
#include "cpu_features.h"

#include "common.h"

#if defined(__x86_64__)

#include <cpuid.h>

/* Bits of CPUID and XCR0, numbered as in Intel's Software Developer's Manual, volumes 1 and 2. */
enum {
    LEAF1_ECX_V3 = 1u << 12 | 1u << 22 | 1u << 27 | 1u << 28 | 1u << 29, /* FMA MOVBE OSXSAVE AVX F16C */
    LEAF7_EBX_V3 = 1u << 3 | 1u << 5 | 1u << 8,                          /* BMI1 AVX2 BMI2 */
    EXTENDED_ECX_LZCNT = 1u << 5,
    LEAF7_ECX_VNNI = 1u << 11,
    LEAF7_1_EAX_AVXVNNI = 1u << 4,
    LEAF7_1_EAX_BF16 = 1u << 5,
    XCR0_AVX = 0x6,        /* the system saves XMM and YMM registers */
    XCR0_AVX512 = 0xe6,    /* … and masks and ZMM registers */
    XCR0_AMX = 0x60000,    /* tile configuration and data */
};
#define LEAF7_EBX_V4 (1u << 16 | 1u << 17 | 1u << 28 | 1u << 30 | 1u << 31) /* AVX-512 F DQ CD BW VL */
#define LEAF7_EDX_AMX (1u << 22 | 1u << 24 | 1u << 25)                      /* bf16, tiles, int8 */

static int has_all(uint64_t bits, uint64_t wanted) { return (bits & wanted) == wanted; }

/* The register states that the operating system saves. Only valid with OSXSAVE. */
static uint64_t saved_states(void) {
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    uint64_t states = (uint64_t)high << 32 | low;
#if defined(__APPLE__)
    states |= XCR0_AVX512; /* macOS sets these bits at the first instruction that needs them */
#endif
    return states;
}

EXPORT unsigned long long cpu_features(void) {
    uint32_t eax, ebx, ecx, edx, leaf1_ecx, extended_ecx;
    if (!__get_cpuid(1, &eax, &ebx, &leaf1_ecx, &edx)) return 0;
    if (!__get_cpuid(0x80000001u, &eax, &ebx, &extended_ecx, &edx)) return 0;
    if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return 0;
    if (!has_all(leaf1_ecx, LEAF1_ECX_V3)) return 0;
    uint64_t states = saved_states();
    if (!has_all(ebx, LEAF7_EBX_V3) || !has_all(extended_ecx, EXTENDED_ECX_LZCNT) ||
        !has_all(states, XCR0_AVX))
        return 0;
    unsigned long long features = FEATURE_AVX2;
    uint32_t leaf7_1_eax = 0, unused[3];
    if (eax >= 1) __get_cpuid_count(7, 1, &leaf7_1_eax, &unused[0], &unused[1], &unused[2]);
    if (has_all(leaf7_1_eax, LEAF7_1_EAX_AVXVNNI)) features |= FEATURE_AVXVNNI;
    if (has_all(ebx, LEAF7_EBX_V4) && has_all(states, XCR0_AVX512)) {
        features |= FEATURE_AVX512;
        if (has_all(ecx, LEAF7_ECX_VNNI)) features |= FEATURE_AVX512VNNI;
        if (has_all(leaf7_1_eax, LEAF7_1_EAX_BF16)) features |= FEATURE_AVX512BF16;
    }
    if (has_all(edx, LEAF7_EDX_AMX) && has_all(states, XCR0_AMX)) features |= FEATURE_AMX;
    return features;
}

#elif defined(__aarch64__) && defined(__linux__)

#include <sys/auxv.h>

/* From the kernel's arch/arm64/include/uapi/asm/hwcap.h; older headers lack some. */
enum { HWCAP_FP16 = 1 << 9, HWCAP_ASIMD_FP16 = 1 << 10, HWCAP_DOT = 1 << 20, HWCAP2_INT8MM = 1 << 13 };

EXPORT unsigned long long cpu_features(void) {
    unsigned long wanted = HWCAP_FP16 | HWCAP_ASIMD_FP16 | HWCAP_DOT;
    if ((getauxval(AT_HWCAP) & wanted) != wanted) return 0;
    return FEATURE_DOTPROD | (getauxval(AT_HWCAP2) & HWCAP2_INT8MM ? FEATURE_I8MM : 0);
}

#elif defined(__aarch64__) && defined(__APPLE__)

#include <sys/sysctl.h>

/* Whether the system reports the feature `hw.optional.arm.NAME`. */
static int has(const char *name) {
    int32_t value = 0;
    size_t nbytes = sizeof(value);
    return sysctlbyname(name, &value, &nbytes, NULL, 0) == 0 && value;
}

EXPORT unsigned long long cpu_features(void) {
    if (!has("hw.optional.arm.FEAT_DotProd") || !has("hw.optional.arm.FEAT_FP16")) return 0;
    return FEATURE_DOTPROD | (has("hw.optional.arm.FEAT_I8MM") ? FEATURE_I8MM : 0);
}

#else

EXPORT unsigned long long cpu_features(void) { return 0; }

#endif
