/* What the kernels of an operation implement. */
#pragma once
#include "common.h"
#include "matrix_layout.h"
#include "program.h"

INLINE int rows_of(const Run *run, int row_set) {
    return row_set == ROWS_LOGITS ? run->num_logits : run->num_tokens;
}

/* Memory of one thread, 64-byte aligned, for as long as it computes one phase. `next_read` is where the
   thread will read next in a later phase, for prefetching; NULL: in this phase, or unknown. */
typedef struct {
    uint8_t *memory;
    size_t nbytes;
    int32_t thread;
    const uint8_t *next_read;
} Scratch;

/* What the kernels of one operation implement. `num_chunks` and the results may depend on
   `run->num_threads` only in the size of chunks, never in the order of sums. `prepare` (may be NULL)
   fills the thread's scratch before its first chunk of a phase. `workspace_bytes` and
   `scratch_bytes` are upper bounds for this operation with so many rows. `first_read` (may be NULL)
   returns where a chunk begins to read weights, or NULL. */
typedef struct {
    int (*num_phases)(const Op *op, const Run *run);
    int (*num_chunks)(const Op *op, const Run *run, int phase);
    void (*prepare)(const Op *op, const Run *run, int phase, Scratch *scratch);
    void (*compute)(const Op *op, const Run *run, int phase, int chunk, Scratch *scratch);
    size_t (*workspace_bytes)(const Op *op, const Buffer *buffers, int num_tokens, int num_logits);
    size_t (*scratch_bytes)(const Op *op, const Buffer *buffers, int num_tokens, int num_logits);
    const uint8_t *(*first_read)(const Op *op, const Run *run, int phase, int chunk);
} OpKernels;

extern const OpKernels embed_kernels, norm_kernels, linear_kernels, rotary_kernels, attention_kernels,
    act_and_mul_kernels, add_scaled_kernels, softcap_kernels, gather_kernels, moe_kernels,
    low_rank_kernels, conv_kernels, drop_columns_kernels, gate_kernels,
    gated_delta_kernels, mamba2_kernels, mamba_kernels;
