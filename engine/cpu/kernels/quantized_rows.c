/* Quantize activations to 16-bit integers. Plain C that compilers vectorize; every operation is exact
   or rounded once, so that all variants give the same bits. */
#include "quantized_rows.h"

#include "common.h"

static size_t planes_bytes(size_t blocks) { return round_up_64(blocks * BLOCK_COLS); }
static size_t numbers_bytes(size_t blocks) { return round_up_64(blocks * 4); }

size_t quantized_rows_bytes(int num_rows, int cols) {
    size_t blocks = (size_t)num_rows * row_stride_blocks(cols);
    return 4 * planes_bytes(blocks) + 3 * numbers_bytes(blocks);
}

QuantizedRows place_quantized_rows(uint8_t *memory, int num_rows, int cols) {
    int row_blocks = row_stride_blocks(cols);
    size_t blocks = (size_t)num_rows * row_blocks, plane = planes_bytes(blocks);
    uint8_t *numbers = memory + 4 * plane;
    return (QuantizedRows){
        .num_rows = num_rows,
        .blocks = row_blocks,
        .whole = (int16_t *)memory,
        .high = (int8_t *)memory + 2 * plane,
        .low = (int8_t *)memory + 3 * plane,
        .scale = (float *)numbers,
        .sum = (int32_t *)(numbers + numbers_bytes(blocks)),
        .half_sum = (int32_t *)(numbers + 2 * numbers_bytes(blocks)),
    };
}

/* The bits of the largest |x| of a block; those of a NaN or an infinity are larger than all others. */
static int32_t largest_magnitude(const float *x) {
    int32_t largest = 0;
    for (int i = 0; i < BLOCK_COLS; i++) {
        int32_t bits;
        memcpy(&bits, x + i, 4);
        largest = max_int(largest, bits & 0x7fffffff);
    }
    return largest;
}

/* Round x * factor [32], below 2^22, to integers: in fp32 the sum with 1.5 * 2^23 has the integer in
   its low bits, rounded to the nearest, ties to even. */
static void round_block(const float *restrict x, float factor, int32_t *restrict rounded) {
    const float shift = 0x1.8p23f;
    int32_t shift_bits;
    memcpy(&shift_bits, &shift, 4);
    for (int i = 0; i < BLOCK_COLS; i++) {
        float sum = x[i] * factor + shift;
        int32_t bits;
        memcpy(&bits, &sum, 4);
        rounded[i] = bits - shift_bits;
    }
}

/* Quantize x [32] into block `at` of the arrays of `to`. */
static void quantize_block(const float *x, const QuantizedRows *to, size_t at) {
    const float top = 32512, smallest = 0x1p-100f;
    int32_t bits = largest_magnitude(x), q[BLOCK_COLS] = {0}, half_sum = 0, sum = 0;
    float largest, scale = 0;
    memcpy(&largest, &bits, 4);
    if (bits >= 0x7f800000) {
        scale = NAN;
    } else if (largest >= smallest) {
        scale = largest / top;
        round_block(x, top / largest, q);
    }
    for (int i = 0; i < BLOCK_COLS / 2; i++) half_sum += q[i];
    for (int i = BLOCK_COLS / 2; i < BLOCK_COLS; i++) sum += q[i];
    to->scale[at] = scale;
    to->sum[at] = sum + half_sum;
    to->half_sum[at] = half_sum;
    int16_t *restrict whole = to->whole + at * BLOCK_COLS;
    int8_t *restrict high = to->high + at * BLOCK_COLS, *restrict low = to->low + at * BLOCK_COLS;
    for (int i = 0; i < BLOCK_COLS; i++) whole[i] = (int16_t)q[i];
    for (int i = 0; i < BLOCK_COLS; i++) high[i] = (int8_t)((q[i] + 128) >> 8);
    for (int i = 0; i < BLOCK_COLS; i++) low[i] = (int8_t)q[i];
}

void quantize_row(const float *x, int cols, const QuantizedRows *to, int row) {
    size_t at = (size_t)row * to->blocks;
    for (int whole_blocks = cols / BLOCK_COLS; whole_blocks > 0; whole_blocks--, x += BLOCK_COLS)
        quantize_block(x, to, at++);
    int rest = cols % BLOCK_COLS;
    if (rest) {
        float last[BLOCK_COLS] = {0};
        memcpy(last, x, (size_t)rest * 4);
        quantize_block(last, to, at);
    }
}
