/* Quantized matrices as the packing function reads them. */
#pragma once
#include <stdint.h>

/* How the quantized values of a matrix are stored. */
enum SourceKind {
    SOURCE_INT4,  /* two values a byte, unsigned, the lower column in the low half */
    SOURCE_INT8,  /* signed bytes */
    SOURCE_UINT8, /* bytes centered at 128 */
    /* Blocks of GGUF files; the layouts are in weights/formats/ggml_dequantize.py. */
    SOURCE_Q1_0,
    SOURCE_Q4_0,
    SOURCE_Q4_1,
    SOURCE_Q5_0,
    SOURCE_Q5_1,
    SOURCE_Q8_0,
    SOURCE_Q2_K,
    SOURCE_Q3_K,
    SOURCE_Q4_K,
    SOURCE_Q5_K,
    SOURCE_Q6_K,
    SOURCE_Q8_K,
    SOURCE_IQ1_S,
    SOURCE_IQ1_M,
    SOURCE_IQ2_XXS,
    SOURCE_IQ2_XS,
    SOURCE_IQ2_S,
    SOURCE_IQ3_XXS,
    SOURCE_IQ3_S,
    SOURCE_IQ4_NL,
    SOURCE_IQ4_XS,
    SOURCE_TQ1_0,
    SOURCE_TQ2_0,
    SOURCE_MXFP4,
    SOURCE_NVFP4,
    NUM_SOURCE_KINDS
};

/* A matrix [rows, cols]. The first three kinds have tables fp32 [rows][groups of group_cols], NULL
   if the target has none. A weight is scale * value + minimum; without minimums the values are
   centered as the target's are, at 8, 0 or 128. For e2m1 values the scales are e8m0 or
   e4m3 bytes as numbers. `grid` has the digits of each point, one a byte, for types that need it. */
typedef struct {
    int32_t kind, rows, cols, group_cols;
    int64_t stride; /* bytes from row to row of the values */
    const uint8_t *values;
    int64_t table_stride; /* floats from row to row */
    const float *scale, *minimum;
    const uint8_t *grid;
} PackSource;

/* What may be wrong with a source's scales or minimums: one is infinite or NaN; one is too large
   for a table of fp16 numbers. */
enum PackError { PACK_NOT_FINITE = 1, PACK_OVERFLOW = 2 };
