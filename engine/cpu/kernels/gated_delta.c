/* The recurrence of gated DeltaNet (`GatedDeltaOp`; Yang et al., 2024, arXiv:2412.06464). With S
   [key_dim, value_dim] the state of a head, k and q of length 1 and sqrt(1 / key_dim):
   S = decay * S, S += k (beta (v - S^T k))^T, out = S^T q.

   A chunk is a value head of one sequence, whose tokens it computes one after the other: so a token's
   result does not depend on how a prompt is divided. The columns of S are independent; as many as have
   registers go through all tokens in the scratch, which stays in the nearest cache. */
#include "fast_math.h"
#include "norm.h"
#include "states.h"
#include "vector.h"

enum { VECTORS = 4, COLUMNS = VECTORS * LANES };

static int num_phases(const Op *base, const Run *run) {
    (void)base, (void)run;
    return 1;
}

static int num_chunks(const Op *base, const Run *run, int phase) {
    (void)phase;
    return run->num_spans * base->gated_delta.num_value_heads;
}

/* Advance the columns S [key_dim, COLUMNS] by one token; `values` [COLUMNS] become the outputs. */
static void advance(float *columns, const float *q, const float *k, int key_dim, float decay,
                    float beta, float *values) {
    Floats added[VECTORS] = {{0}}, out[VECTORS] = {{0}};
    for (int i = 0; i < key_dim; i++) {
        const float *row = columns + (size_t)i * COLUMNS;
        const Floats key = broadcast_float(k + i);
        for (int j = 0; j < VECTORS; j++)
            added[j] = add_product(added[j], load_floats(row + j * LANES), key);
    }
    for (int j = 0; j < VECTORS; j++)
        added[j] = beta * (load_floats(values + j * LANES) - decay * added[j]);
    for (int i = 0; i < key_dim; i++) {
        float *row = columns + (size_t)i * COLUMNS;
        const Floats key = broadcast_float(k + i), query = broadcast_float(q + i);
        for (int j = 0; j < VECTORS; j++) {
            Floats s = add_product(decay * load_floats(row + j * LANES), key, added[j]);
            store_floats(row + j * LANES, s);
            out[j] = add_product(out[j], s, query);
        }
    }
    for (int j = 0; j < VECTORS; j++) store_floats(values + j * LANES, out[j]);
}

static float *state_of(const GatedDeltaOp *op, int slot, int head) {
    const size_t size = (size_t)op->key_dim * op->value_dim;
    return op->state + ((size_t)slot * op->num_value_heads + head) * size;
}

/* Compute the columns first .. first + COLUMNS of a head for all tokens of the span. */
static void scan(const GatedDeltaOp *op, const Run *run, const Span *span, int head, int first,
                 float *memory) {
    const int key_dim = op->key_dim, value_dim = op->value_dim, keys = op->num_key_heads * key_dim;
    const int key_head = head / (op->num_value_heads / op->num_key_heads);
    const int values_width = op->num_value_heads * value_dim;
    const int x_width = run->widths[op->x].width, n = min_int(COLUMNS, value_dim - first);
    const size_t nbytes = (size_t)n * sizeof(float);
    const float rate = expf(op->decay[head]);
    float *columns = memory, *q = columns + (size_t)key_dim * COLUMNS, *k = q + key_dim;
    memset(columns, 0, (size_t)key_dim * COLUMNS * sizeof(float));
    if (!is_first(span)) {
        const float *state = state_of(op, span->state_slot, head) + first;
        for (int i = 0; i < key_dim; i++)
            memcpy(columns + (size_t)i * COLUMNS, state + (size_t)i * value_dim, nbytes);
    }
    for (int t = 0; t < span->num_rows; t++) {
        const size_t row = (size_t)span->first_row + t;
        const float *x = run->buffers[op->x] + row * x_width;
        const float *gates = x + 2 * keys + 2 * values_width; /* beta and steps of the heads */
        float *out = run->buffers[op->out] + row * values_width + head * value_dim + first;
        const float step = gates[op->num_value_heads + head] + op->step_bias[head];
        const float beta = op->beta_scale * fast_sigmoid(gates[head]);
        float values[COLUMNS] = {0};
        memcpy(values, x + 2 * keys + head * value_dim + first, nbytes);
        norm_row(&op->q_norm, x + key_head * key_dim, key_dim, q);
        norm_row(&op->k_norm, x + keys + key_head * key_dim, key_dim, k);
        advance(columns, q, k, key_dim, fast_exp(-rate * softplus(step)), beta, values);
        memcpy(out, values, nbytes);
        const int slot = slot_after(span, t);
        for (int i = 0; slot >= 0 && i < key_dim; i++)
            memcpy(state_of(op, slot, head) + (size_t)i * value_dim + first,
                   columns + (size_t)i * COLUMNS, nbytes);
    }
}

/* Normalize the outputs of a head and multiply them with silu(z). */
static void finish_row(const GatedDeltaOp *op, const float *z, float *out) {
    norm_row(&op->norm, out, op->value_dim, out);
    for (int i = 0; i < op->value_dim; i++) out[i] *= z[i] * fast_sigmoid(z[i]);
}

static void compute(const Op *base, const Run *run, int phase, int chunk, Scratch *scratch) {
    const GatedDeltaOp *op = &base->gated_delta;
    (void)phase;
    const int heads = op->num_value_heads, head = chunk % heads, value_dim = op->value_dim;
    const Span *span = run->spans + chunk / heads;
    const size_t x_width = (size_t)run->widths[op->x].width;
    for (int first = 0; first < value_dim; first += COLUMNS)
        scan(op, run, span, head, first, (float *)(void *)scratch->memory);
    const int z = 2 * op->num_key_heads * op->key_dim + (heads + head) * value_dim;
    for (int row = span->first_row; row < span->first_row + span->num_rows; row++)
        finish_row(op, run->buffers[op->x] + row * x_width + z,
                   run->buffers[op->out] + ((size_t)row * heads + head) * value_dim);
}

static size_t no_bytes(const Op *base, const Buffer *buffers, int num_tokens, int num_logits) {
    (void)base, (void)buffers, (void)num_tokens, (void)num_logits;
    return 0;
}

static size_t scratch_bytes(const Op *base, const Buffer *buffers, int num_tokens, int num_logits) {
    (void)buffers, (void)num_tokens, (void)num_logits;
    return (size_t)base->gated_delta.key_dim * (COLUMNS + 2) * sizeof(float);
}

const OpKernels gated_delta_kernels = {num_phases, num_chunks, 0, compute, no_bytes, scratch_bytes};
