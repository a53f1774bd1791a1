/* Mixture of experts: the memory of one batch, shared by routing and by the experts' MLPs.

   A pair is a row and one of its chosen experts; each expert's pairs are neighbors, in the order of
   rows. A slot is an expert that has pairs. */
#pragma once
#include "gemm.h"
#include "gemv.h"
#include "op_kernels.h"

/* What the router decided for n rows with k experts each. */
typedef struct {
    int32_t *num_slots;   /* one */
    int32_t *slot_expert; /* [slots] */
    int32_t *slot_first;  /* [slots + 1]: the first pair */
    int32_t *chosen;      /* [n][k], each row's experts in ascending order */
    float *weight;        /* [n][k] */
    int32_t *pair;        /* [n][k] */
    int32_t *pair_row;    /* [n * k] */
    int32_t *pair_expert; /* [n * k] */
    float *scores;        /* [n][num_experts] */
    float *shared_weight; /* [n] */
} Routes;

/* Rows on their way through experts of one size: the pairs, or all rows for the shared expert. Input
   and inner rows are fp32 or, for integer matrices, quantized. Strides are multiples of a tile. */
typedef struct {
    int num_rows, size, gate_up_stride, y_stride;
    int x_is_quantized, inner_is_quantized;
    float *x, *gate_up, *inner, *y;
    QuantizedRows quantized_x, quantized_inner;
} ExpertRows;

typedef struct {
    int num_rows, max_slots; /* rows of the batch; at most so many experts have pairs */
    Routes routes;
    ExpertRows routed, shared; /* shared.num_rows 0: there is no such expert */
    size_t nbytes;
} MoeMemory;

/* Lay the memory for n rows out from `memory` on, which may be NULL to get its size. */
MoeMemory moe_memory(const MoeOp *op, int n, uint8_t *memory);
/* The router's scores of rows first_row .. for experts first_expert .., or the shared expert's weights
   if first_expert is num_experts. */
void moe_score(const MoeOp *op, const MoeMemory *memory, const float *x, int first_row, int num_rows,
               int first_expert, int num_experts);
/* Choose the experts of one row. */
void moe_choose(const MoeOp *op, const MoeMemory *memory, int row);
/* Take the experts of one row that the run gives. */
void moe_take_routes(const MoeOp *op, const Run *run, const MoeMemory *memory, int row);
/* Number the pairs and the slots of all rows. */
void moe_number_pairs(const MoeOp *op, const MoeMemory *memory);
