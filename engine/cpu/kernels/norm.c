/* RMSNorm (Zhang and Sennrich, 2019, arXiv:1910.07467) and LayerNorm (Ba et al., 2016,
   arXiv:1607.06450) of rows. */
#include "norm.h"

#include "chunks.h"

enum { NUM_SUMS = 32 };

/* The sum of (x - shift)^2 over a row, in NUM_SUMS interleaved sums: an order that does not depend on
   the instruction set. */
static float sum_of_squares(const float *x, int width, float shift) {
    float sums[NUM_SUMS] = {0}, sum = 0;
    int whole = width / NUM_SUMS * NUM_SUMS;
    for (int i = 0; i < whole; i += NUM_SUMS)
        for (int j = 0; j < NUM_SUMS; j++) sums[j] += (x[i + j] - shift) * (x[i + j] - shift);
    for (int i = whole; i < width; i++) sums[i - whole] += (x[i] - shift) * (x[i] - shift);
    for (int j = 0; j < NUM_SUMS; j++) sum += sums[j];
    return sum;
}

/* The mean of a row [width]. */
static float mean(const float *x, int width) {
    float sums[NUM_SUMS] = {0}, sum = 0;
    int whole = width / NUM_SUMS * NUM_SUMS;
    for (int i = 0; i < whole; i += NUM_SUMS)
        for (int j = 0; j < NUM_SUMS; j++) sums[j] += x[i + j];
    for (int i = whole; i < width; i++) sums[i - whole] += x[i];
    for (int j = 0; j < NUM_SUMS; j++) sum += sums[j];
    return sum / (float)width;
}

/* What a row's elements are shifted by and then multiplied with. */
typedef struct {
    float shift, factor;
} Moments;

static Moments moments(const Norm *norm, const float *x, int width) {
    float shift = norm->kind == NORM_LAYER ? mean(x, width) : 0.0f;
    float mean_square = sum_of_squares(x, width, shift) / (float)width;
    return (Moments){shift, 1.0f / sqrtf(mean_square + norm->eps)};
}

void norm_row(const Norm *norm, const float *x, int width, float *out) {
    Moments m = moments(norm, x, width);
    const float *weight = norm->weight, *bias = norm->bias;
    /* out may be x: the elements are independent all the same. */
#pragma clang loop vectorize(assume_safety)
    for (int i = 0; i < width; i++) out[i] = (x[i] - m.shift) * m.factor * weight[i];
    if (!bias) return;
#pragma clang loop vectorize(assume_safety)
    for (int i = 0; i < width; i++) out[i] += bias[i];
}

/* out += norm(x) for a row [width]. */
static void add_norm_row(const Norm *norm, const float *x, int width, float *out) {
    Moments m = moments(norm, x, width);
    const float *weight = norm->weight, *bias = norm->bias;
    for (int i = 0; i < width; i++)
        out[i] += (x[i] - m.shift) * m.factor * weight[i] + (bias ? bias[i] : 0.0f);
}

static int num_phases(const Op *op, const Run *run) {
    (void)op, (void)run;
    return 1;
}

static int num_chunks(const Op *op, const Run *run, int phase) {
    (void)phase;
    return count_row_chunks(rows_of(run, op->header.row_set), run->widths[op->norm.x].width);
}

static void compute(const Op *op, const Run *run, int phase, int chunk, Scratch *scratch) {
    (void)phase, (void)scratch;
    const NormOp *o = &op->norm;
    size_t width = (size_t)run->widths[o->x].width, group = o->group_width ? (size_t)o->group_width : width;
    Part part = row_chunk(rows_of(run, op->header.row_set), (int)width, chunk);
    size_t first = (size_t)part.first_row * width, end = first + (size_t)part.num_rows * width;
    for (size_t i = first; i < end; i += group) {
        const float *x = run->buffers[o->x] + i;
        float *out = run->buffers[o->out] + i;
        if (o->accumulate)
            add_norm_row(&o->norm, x, (int)group, out);
        else
            norm_row(&o->norm, x, (int)group, out);
    }
}

static size_t no_bytes(const Op *op, const Buffer *buffers, int num_tokens, int num_logits) {
    (void)op, (void)buffers, (void)num_tokens, (void)num_logits;
    return 0;
}

const OpKernels norm_kernels = {num_phases, num_chunks, 0, compute, no_bytes, no_bytes};
