/* What the processor and the operating system support. The bits are those of engine/cpu/features.py. */
#pragma once

enum CpuFeature {
    FEATURE_AVX2 = 1,        /* AVX2, FMA, F16C, BMI2: x86-64-v3 */
    FEATURE_AVX512 = 2,      /* AVX-512 F, BW, CD, DQ, VL: x86-64-v4 */
    FEATURE_AVX512VNNI = 4,
    FEATURE_AVX512BF16 = 8,
    FEATURE_AMX = 16,        /* AMX tiles with int8 and bf16 */
    FEATURE_DOTPROD = 32,    /* aarch64 int8 dot products and fp16 arithmetic */
    FEATURE_I8MM = 64,
    FEATURE_AVXVNNI = 128,   /* the integer instructions of AVX512-VNNI on AVX2's registers */
};
