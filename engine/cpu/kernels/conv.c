/* Causal depthwise convolutions over the tokens of each sequence (`ConvOp`): of LFM2's gated
   convolutions, and of the inputs of gated DeltaNet and Mamba-2.

   A chunk is a block of channels of one sequence, whose tokens it computes one after the other, with the
   last `kernel` inputs in its scratch. So a token's result does not depend on how a prompt is
   divided. */
#include "activation.h"
#include "fast_math.h"
#include "states.h"

enum { BLOCK_CHANNELS = 64 };

static int channel_blocks(const ConvOp *op) {
    return (op->channels + BLOCK_CHANNELS - 1) / BLOCK_CHANNELS;
}

static int num_phases(const Op *base, const Run *run) {
    (void)base, (void)run;
    return 1;
}

static int num_chunks(const Op *base, const Run *run, int phase) {
    (void)phase;
    return run->num_spans * channel_blocks(&base->conv);
}

/* The inputs of token t of a ring; the tokens before the span's are 0 .. kernel - 2. */
INLINE float *ring_row(float *ring, int kernel, int t) {
    return ring + (size_t)(t % kernel) * BLOCK_CHANNELS;
}

/* y [n] = act(bias + the weighted sum of the ring's inputs), of which the last is token t. */
static void convolve(const ConvOp *op, float *ring, int t, int first, int n, float *y) {
    const float *bias = op->bias;
    for (int c = 0; c < n; c++) y[c] = bias ? bias[first + c] : 0.0f;
    for (int i = 0; i < op->kernel; i++) {
        const float *weight = op->weight + (size_t)i * op->channels + first;
        const float *in = ring_row(ring, op->kernel, t - op->kernel + 1 + i);
        for (int c = 0; c < n; c++) y[c] = multiply_add_float(weight[c], in[c], y[c]);
    }
    activate(op->activation, y, n);
}

/* Write the last inputs of n channels, up to row t of the span, to the slot for the state after it. */
static void keep(const ConvOp *op, const Span *span, float *ring, int t, int first, int n) {
    const int before = op->kernel - 1, slot = slot_after(span, t);
    for (int i = 0; slot >= 0 && i < before; i++)
        memcpy(op->state + ((size_t)slot * before + i) * op->channels + first,
               ring_row(ring, op->kernel, t + 1 + i), (size_t)n * sizeof(float));
}

static void compute(const Op *base, const Run *run, int phase, int chunk, Scratch *scratch) {
    const ConvOp *op = &base->conv;
    (void)phase;
    const Span *span = run->spans + chunk / channel_blocks(op);
    const int first = chunk % channel_blocks(op) * BLOCK_CHANNELS, before = op->kernel - 1;
    const int n = min_int(BLOCK_CHANNELS, op->channels - first), width = op->channels;
    const int x_width = run->widths[op->x].width, out_width = run->widths[op->out].width;
    const size_t nbytes = (size_t)n * sizeof(float);
    float *ring = (float *)(void *)scratch->memory, y[BLOCK_CHANNELS];
    for (int i = 0; i < before; i++) {
        if (is_first(span))
            memset(ring_row(ring, op->kernel, i), 0, nbytes);
        else
            memcpy(ring_row(ring, op->kernel, i),
                   op->state + ((size_t)span->state_slot * before + i) * width + first, nbytes);
    }
    for (int i = 0; i < span->num_rows; i++) {
        const size_t row = (size_t)span->first_row + i;
        const float *x = run->buffers[op->x] + row * x_width + op->first + first;
        float *out = run->buffers[op->out] + row * out_width + op->first + first;
        float *in = ring_row(ring, op->kernel, before + i);
        if (op->gated)
            for (int c = 0; c < n; c++) in[c] = x[c] * x[2 * width + c];
        else
            memcpy(in, x, nbytes);
        convolve(op, ring, before + i, first, n, y);
        if (op->gated)
            for (int c = 0; c < n; c++) y[c] *= x[width + c];
        memcpy(out, y, nbytes);
        keep(op, span, ring, i, first, n);
    }
}

static size_t no_bytes(const Op *base, const Buffer *buffers, int num_tokens, int num_logits) {
    (void)base, (void)buffers, (void)num_tokens, (void)num_logits;
    return 0;
}

static size_t scratch_bytes(const Op *base, const Buffer *buffers, int num_tokens, int num_logits) {
    (void)buffers, (void)num_tokens, (void)num_logits;
    return (size_t)base->conv.kernel * BLOCK_CHANNELS * sizeof(float);
}

const OpKernels conv_kernels = {num_phases, num_chunks, 0, compute, no_bytes, scratch_bytes};
