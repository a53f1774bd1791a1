/* A program: the operations of a forward pass, recorded once per model and run for every batch.

   An operation reads and writes buffers, fp32 [rows, width]. Rows are the tokens of the batch
   (ROWS_TOKENS) or those tokens whose logits are computed (ROWS_LOGITS). An operation has phases, a
   phase has chunks. Threads claim chunks; a phase starts when all chunks of the one before are
   done. Results do not depend on the number of threads or on who computes a chunk.

   engine/cpu/native.py reads this header, matrix.h and pack_source.h: they have enumerations,
   structures and unions, and nothing else. */
#pragma once
#include "matrix.h"

enum { MAX_EXPERT_GROUPS = 64 };

enum OpKind {
    OP_EMBED,
    OP_NORM,
    OP_LINEAR,
    OP_ROTARY,
    OP_ATTENTION,
    OP_ACT_AND_MUL,
    OP_ADD_SCALED,
    OP_SOFTCAP,
    OP_GATHER,
    OP_MOE,
    OP_LOW_RANK,
    OP_CONV,
    OP_DROP_COLUMNS,
    OP_GATE,
    OP_GATED_DELTA,
    OP_MAMBA2,
    OP_MAMBA,
    NUM_OP_KINDS
};
enum RowSet { ROWS_TOKENS, ROWS_LOGITS };
enum NormKind { NORM_NONE, NORM_RMS, NORM_LAYER };
enum Activation { ACT_NONE, ACT_SILU, ACT_RELU, ACT_GELU, ACT_GELU_TANH, ACT_GELU_SIGMOID, ACT_RELU2 };
enum Epilogue { EPILOGUE_STORE, EPILOGUE_ADD, EPILOGUE_ACT, EPILOGUE_ACT_AND_MUL };
enum KVFormat { KV_F32, KV_F16, KV_BF16, KV_INT8, KV_FP8, KV_INT5 };

typedef struct {
    int32_t kind, row_set; /* OpKind, RowSet: of the rows that are computed */
} OpHeader;

/* The number of a buffer that an operation reads, and of the one that it writes, in place if it
   names no other. */
typedef int32_t Source, Target;

/* A norm of rows of `width`; `weight` and `bias` fp32 [width], bias NULL: none. RMS:
   weight * x / sqrt(mean(x^2) + eps); LAYER: weight * (x - mean) / sqrt(variance + eps) + bias. */
typedef struct {
    int32_t kind; /* NormKind */
    float eps;
    const float *weight, *bias;
} Norm;

/* out = scale * table[ids] + positions[position + position_offset]; without a table or without
   positions (data NULL) only the other. `run->embeddings` may replace rows of the table, but not of
   a second table besides the model's; its row 0 stands for ids that it does not have. */
typedef struct {
    OpHeader header;
    Target out;
    float scale;
    int32_t position_offset;
    int32_t is_second_table;
    Matrix table, positions;
} EmbedOp;

/* out = norm(x), or out += norm(x). In place if out is x. With a group_width each group of so many
   elements of a row has a norm of its own, with the same weights. */
typedef struct {
    OpHeader header;
    Source x;
    Target out;
    int32_t accumulate, group_width; /* group_width 0: the row */
    Norm norm;
} NormOp;

/* y = norm(x) * parts^T + bias, where `parts` [num_parts] lie one below the other; then
   STORE: out = y. ADD: out += y. ACT: out = act(y). ACT_AND_MUL: the first half of y is the gate,
   the second is up; out = act(gate) * up, and the border lies between two tiles and, with several
   parts, between two of them. x and out are different buffers, unless ADD with out == x. `exact`:
   integer matrices multiply fp32 activations instead of 16-bit ones. */
typedef struct {
    OpHeader header;
    Source x;
    Target out;
    int32_t epilogue, activation;
    int32_t num_parts, rows; /* rows of all parts */
    int32_t exact;
    const Matrix *parts;
    const float *bias; /* fp32 [rows]; NULL: none */
    Norm norm;
} LinearOp;

/* The KV cache of one layer: [num_blocks, 2 * num_kv_heads, block_size, head_dim], keys first;
   `scales` fp32 without the last dimension for KV_INT8, KV_FP8 and KV_INT5, else NULL. With KV_INT5
   heads are rotated and packed as engine/model/int5_kv.py describes: `values` has head_dim / 2 bytes
   a row, `key_bits` and `value_bits` [num_blocks, num_kv_heads, block_size] rows of head_dim / 4 and
   head_dim / 8. */
typedef struct {
    int32_t format; /* KVFormat */
    int32_t block_size;
    void *values;
    float *scales;
    uint8_t *key_bits, *value_bits; /* NULL without KV_INT5 */
} LayerCache;

/* For each row of qkv [(num_heads + 2 * num_kv_heads) * head_dim]: normalize queries, keys and values,
   rotate queries and keys in place (half-split pairs), multiply queries by their factor, write keys
   and values to the cache's slot. Without KV heads only queries are changed. */
typedef struct {
    OpHeader header;
    Target qkv;
    int32_t num_heads, num_kv_heads, head_dim;
    int32_t norm_width;      /* elements normalized together: head_dim, or all heads' */
    int32_t two_dimensional; /* the second half of the pairs uses the second position */
    int32_t num_positions;   /* rows of cos_sin and query_factors */
    int32_t norm_after;      /* normalize after the rotation */
    int32_t values_are_keys; /* qkv has no values: they are the keys before norm and rotation */
    Norm q_norm, k_norm;     /* weight fp32 [num_heads * head_dim]; kind NORM_NONE: none */
    Norm v_norm;             /* of each head, weight fp32 [head_dim] */
    const float *cos_sin;    /* [num_positions, head_dim]: cosines, then sines; NULL: no rotation */
    const float *query_factors; /* [num_positions], of the queries at a position; NULL: all are 1 */
    LayerCache cache;
} RotaryOp;

/* Causal grouped-query attention of the queries in qkv over the cache: out [num_heads * head_dim]. */
typedef struct {
    OpHeader header;
    Source qkv;
    Target out;
    int32_t num_heads, num_kv_heads, head_dim;
    int32_t window;      /* the last tokens that are seen; 0: all */
    float scale, softcap; /* softcap 0: none */
    const float *slopes; /* ALiBi, fp32 [num_heads]; NULL: none */
    const float *sinks;  /* fp32 [num_heads]; NULL: none */
    LayerCache cache;
} AttentionOp;

/* out [width] = act(gate) * up of x [2 * width]; without a gate act(x). */
typedef struct {
    OpHeader header;
    Source x;
    Target out;
    int32_t activation;
    int32_t gated;
    float gate_limit; /* 0: none; see `_clamp` in engine/reference/ops.py */
    float gate_scale; /* of the gate, before the activation; 0: none */
} ActAndMulOp;

/* out = alpha * out + beta * x; alpha 0 does not read out. */
typedef struct {
    OpHeader header;
    Source x;
    Target out;
    float alpha, beta;
} AddScaledOp;

/* x = cap * tanh(x / cap). */
typedef struct {
    OpHeader header;
    Target x;
    float cap;
} SoftcapOp;

/* out (ROWS_LOGITS) = the rows `logits_rows` of x (ROWS_TOKENS). */
typedef struct {
    OpHeader header;
    Source x;
    Target out;
} GatherOp;

typedef struct {
    Matrix gate_up, down;
    const float *gate_up_bias, *down_bias; /* NULL: none */
} Expert;

/* Mixture of experts: out = the weighted sum of the chosen experts' MLPs, as
   engine/reference/moe.py defines it. `shared` is computed for all rows; num_experts 0 never occurs. The
   gate_up matrices of all experts but the shared one are integer matrices or all are float ones,
   likewise the down matrices. `exact` as for LinearOp. The router's matrices are float ones;
   a run that gives the routes uses none, and `shared_size` is 0. */
typedef struct {
    OpHeader header;
    Source x, router_x; /* the router reads router_x, which may be x */
    Target out;
    int32_t num_experts, experts_per_token, normalized;
    int32_t hidden_size, expert_size, shared_size; /* shared_size 0: no shared expert */
    int32_t exact;
    int32_t sigmoid, groups, top_groups; /* see RouterConfig; groups 1: all experts */
    float eps, scale;
    ActAndMulOp act;              /* its x and out are unused */
    Matrix router, shared_router; /* shared_router.data NULL: the shared expert has weight 1 */
    const float *router_bias;
    const float *correction; /* added to the scores for the choice; NULL: none */
    const float *expert_scales; /* of the outputs of experts, [num_experts]; NULL: all are 1 */
    const Expert *experts; /* [num_experts], then the shared one */
} MoeOp;

/* Columns first .. first + columns of a row of results += (a * x) * b, a [rank, width of x] and b
   [rank, columns]. Without a (data NULL) += b * x, b [columns, width of x]. Float matrices. */
typedef struct {
    int32_t first, columns, rank; /* rank 0 without a */
    Matrix a, b;
} LowRank;

/* What one set of adapters changes in the results of a matmul, without the bias: results = gain *
   results + offset, then the parts are added. `rank` is the sum of the parts'. gain, offset fp32
   [width]; NULL: none. */
typedef struct {
    int32_t num_parts, rank;
    const LowRank *parts;
    const float *gain, *offset;
} Delta;

/* Apply to the rows of out, which a matmul of x with this bias has written, the changes of the set of
   adapters of each row (`run->sets`): deltas [num_sets]. The array may change between two runs. */
typedef struct {
    OpHeader header;
    Source x;
    Target out;
    int32_t num_sets;
    const Delta *deltas;
    const float *bias; /* NULL: none */
} LowRankOp;

/* A causal depthwise convolution over the tokens of each sequence, with an activation: for token t
   and channel c, out = act(bias[c] + the sum over i of weight[i, c] * in[t - kernel + 1 + i, c]).
   `gated`: x is b, g and v side by side, in = b * v, and the result is multiplied by g. Otherwise
   in place: out is x, and the channels are its columns from `first` on. Before the first token of a
   sequence come zeros. */
typedef struct {
    OpHeader header;
    Source x;
    Target out;
    int32_t first, channels, kernel, activation, gated;
    const float *weight; /* [kernel, channels] */
    const float *bias;   /* [channels]; NULL: none */
    float *state;        /* [num_slots, kernel - 1, channels]: the last inputs of a sequence */
} ConvOp;

/* out = x without the columns from `first` on that it has more than out. */
typedef struct {
    OpHeader header;
    Source x;
    Target out;
    int32_t first;
} DropColumnsOp;

/* out *= the sigmoid of as many columns of x, from `first` on; if `is_plain`, out *= these columns.
   x and out are different buffers. */
typedef struct {
    OpHeader header;
    Source x;
    Target out;
    int32_t first, is_plain;
} GateOp;

/* Gated DeltaNet after its convolution, as engine/reference/mixers/gated_delta.py defines it. A row of x has
   queries and keys of the key heads, values and output gates of the value heads, beta and steps of
   each of these; out [num_value_heads * value_dim]. beta_scale multiplies beta. q_norm and k_norm give
   queries and keys their lengths, `norm` is of the outputs of a head. `decay` and `step_bias` fp32
   [num_value_heads]. */
typedef struct {
    OpHeader header;
    Source x;
    Target out;
    int32_t num_key_heads, num_value_heads, key_dim, value_dim;
    float beta_scale;
    Norm q_norm, k_norm, norm;
    const float *decay, *step_bias;
    float *state; /* [num_slots, num_value_heads, key_dim, value_dim] */
} GatedDeltaOp;

/* Mamba-2 after its convolution, as engine/reference/mixers/mamba2.py defines it. A row of x has output gates and
   x of all heads, b and c of all groups, and a step for each head; out [num_heads * head_dim]. The
   gates are multiplied by z_scale, the steps by step_scale. `norm` is of the outputs of each group,
   before they are gated if gate_last; its weight is [num_heads * head_dim]. `decay`, `step_bias` and
   `skip` fp32 [num_heads]. */
typedef struct {
    OpHeader header;
    Source x;
    Target out;
    int32_t num_heads, head_dim, num_groups, state_size, gate_last;
    float min_step, z_scale, step_scale;
    Norm norm;
    const float *decay, *step_bias, *skip;
    float *state; /* [num_slots, num_heads, head_dim, state_size] */
} Mamba2Op;

/* Mamba after its convolution, as engine/reference/mixers/mamba.py defines it. A row of x has x and output gates of
   all channels; out [width]. Rows of to_parts [step_rank + 2 * state_size, width] make the inputs of
   steps, b and c of x, which have norms; to_step [width, step_rank]. `decay` [width, state_size] is
   negative; it, `step_bias` and `skip` [width] are fp32. */
typedef struct {
    OpHeader header;
    Source x;
    Target out;
    int32_t width, state_size, step_rank;
    Norm step_norm, b_norm, c_norm;
    const float *to_parts, *to_step, *decay, *step_bias, *skip;
    float *state; /* [num_slots, width, state_size] */
} MambaOp;

typedef union {
    OpHeader header;
    EmbedOp embed;
    NormOp norm;
    LinearOp linear;
    RotaryOp rotary;
    AttentionOp attention;
    ActAndMulOp act_and_mul;
    AddScaledOp add_scaled;
    SoftcapOp softcap;
    GatherOp gather;
    MoeOp moe;
    LowRankOp low_rank;
    ConvOp conv;
    DropColumnsOp drop_columns;
    GateOp gate;
    GatedDeltaOp gated_delta;
    Mamba2Op mamba2;
    MambaOp mamba;
} Op;

typedef struct {
    int32_t row_set, width;
} Buffer;

typedef struct {
    int32_t num_ops, num_buffers;
    const Op *ops;
    const Buffer *buffers;
} Program;

/* The packed tokens first_row .. first_row + num_rows of one sequence: the last of context_len
   tokens. Tokens before prefix_len see each other in both directions. The states of the sequence are
   in state_slot; before its first token they are zero, whatever the slot holds. The states after each
   row are written to `after_slots` [num_rows]; NULL: only those after the last row, to state_slot. */
typedef struct {
    int32_t first_row, num_rows, context_len, prefix_len, state_slot;
    const int32_t *block_table, *after_slots;
} Span;

/* One batch. `sets` are the sets of adapters of the tokens, -1 for none; NULL: no token has any.
   `embeddings` are rows that replace those of the table of embeddings, NULL for none; NULL: no
   token has one. `chosen` are the experts of each row, `chosen_weights` their weights, both [rows,
   experts_per_token]; an expert that does not exist has no weight; NULL: routers choose. The caller
   allocates `buffers` (one pointer per buffer, 64-byte aligned, rows of `width` floats without
   padding) and `workspace`. */
typedef struct {
    int32_t num_tokens, num_logits, num_spans, num_threads;
    const int32_t *ids, *positions, *second_positions, *slots, *logits_rows, *sets;
    const float *const *embeddings;
    const int32_t *chosen;
    const float *chosen_weights;
    const Span *spans;
    float *const *buffers;
    const Buffer *widths; /* of the program */
    uint8_t *workspace;   /* shared by the threads, `workspace_bytes` of the program */
} Run;

/* What a GPU requests: `failed` is 1 after a run for which memory was out. */
typedef struct {
    void *pool; /* Pool */
    const Program *program;
    Run *run;
    int32_t failed;
} HostCall;

/* The words of 64 bits of a mailbox, in memory that a GPU writes and reads: the number of the last
   request at 0, that of the last call that was made, the address of the HostCall that is wanted; each
   in a cache line of its own. Requests are numbered from 1 on, and wait for each other. */
enum { MAILBOX_DONE = 8, MAILBOX_CALL = 16, MAILBOX_WORDS = 24 };
