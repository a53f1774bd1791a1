/* Linear operations.

   Up to MAX_GEMV_ROWS rows: one phase of GEMVs. Every thread prepares all input rows for itself, which
   takes less time than waiting for another thread. More rows: a phase that prepares input rows in the
   workspace, and a phase of GEMMs. To prepare a row is to normalize it and, for integer matrices, to
   quantize it. A chunk is a range of output elements times a range of rows. */
#include "activation.h"
#include "linear_inputs.h"
#include "linear_rows.h"

enum {
    ROWS_PER_PREPARATION = 4,
    /* Of a GEMV's chunk: claiming it costs little against reading so many weights. */
    GEMV_CHUNK_BYTES = 32 * 1024,
    MAX_GEMV_CHUNK_TILES = 32,
    /* Of a GEMM's: outputs stay in the L2 cache; weights are unpacked once for many rows. */
    MAX_GEMM_CHUNK_TILES = 16,
    MAX_GEMM_CHUNK_ROWS = 256,
    GEMM_CHUNKS_PER_THREAD = 4,
    SLACK = TILE_ROWS, /* floats before and after results: of rows of a tile that are not wanted */
};

/* A range of output elements and of rows. */
typedef struct {
    int first_element, num_elements, first_row, num_rows;
} Chunk;

/* How the second phase is split: chunks of elements times chunks of rows. */
typedef struct {
    int elements, rows;
} Split;

INLINE int is_gated(const LinearOp *op) { return op->epilogue == EPILOGUE_ACT_AND_MUL; }
/* Elements of an output row. */
INLINE int out_width(const LinearOp *op) { return is_gated(op) ? op->rows / 2 : op->rows; }
INLINE int out_tiles(const LinearOp *op) { return (out_width(op) + TILE_ROWS - 1) / TILE_ROWS; }

static int max_chunk_tiles(const LinearOp *op, int num_rows) {
    if (num_rows <= MAX_GEMV_ROWS) return MAX_GEMV_CHUNK_TILES;
    return is_gated(op) ? MAX_GEMM_CHUNK_TILES / 2 : MAX_GEMM_CHUNK_TILES;
}

static Split split_of(const LinearOp *op, int num_rows, int num_threads) {
    const int tiles = out_tiles(op), most_tiles = max_chunk_tiles(op, num_rows);
    int elements, rows = 1;
    if (num_rows <= MAX_GEMV_ROWS) {
        size_t chunks = all_weight_bytes(op) / ((size_t)num_threads * GEMV_CHUNK_BYTES);
        elements = chunks < (size_t)tiles ? max_int((int)chunks, 1) * num_threads : tiles;
    } else {
        rows = (num_rows + MAX_GEMM_CHUNK_ROWS - 1) / MAX_GEMM_CHUNK_ROWS;
        elements = (GEMM_CHUNKS_PER_THREAD * num_threads + rows - 1) / rows;
    }
    elements = max_int(elements, (tiles + most_tiles - 1) / most_tiles);
    return (Split){min_int(elements, tiles), rows};
}

/* Chunks with the same weights follow each other. */
static Chunk chunk_of(const LinearOp *op, int num_rows, Split split, int chunk) {
    const int tiles = out_tiles(op), e = chunk / split.rows, r = chunk % split.rows;
    int first = (int)((int64_t)tiles * e / split.elements) * TILE_ROWS;
    int end = (int)((int64_t)tiles * (e + 1) / split.elements) * TILE_ROWS;
    int first_row = (int)((int64_t)num_rows * r / split.rows);
    int end_row = (int)((int64_t)num_rows * (r + 1) / split.rows);
    return (Chunk){first, min_int(end, out_width(op)) - first, first_row, end_row - first_row};
}

/* Offsets of a thread's memory: its inputs, unless they are in the workspace; an input row; results,
   and those of up; the panel of GEMMs. */
typedef struct {
    size_t row, results, up, panel, nbytes;
    int stride; /* floats from row to row of results */
} Layout;

static Layout layout_of(const LinearOp *op, int num_rows) {
    const int stride = max_chunk_tiles(op, num_rows) * TILE_ROWS + 2 * SLACK;
    const size_t result_bytes = round_up_64((size_t)min_int(num_rows, MAX_GEMM_CHUNK_ROWS) * stride * 4);
    Layout l = {.stride = stride};
    l.row = shares_inputs(op, num_rows) ? 0 : inputs_bytes(op, num_rows);
    l.results = l.row + round_up_64((size_t)linear_cols(op) * 4);
    l.up = l.results + result_bytes;
    l.panel = l.up + (is_gated(op) ? result_bytes : 0);
    l.nbytes = l.panel + panel_bytes(op, num_rows);
    return l;
}

INLINE float *floats_at(const Scratch *scratch, size_t offset) { return (float *)(scratch->memory + offset); }

static int num_phases(const Op *op, const Run *run) {
    int rows = rows_of(run, op->header.row_set);
    return rows == 0 ? 0 : shares_inputs(&op->linear, rows) ? 2 : 1;
}

/* Whether a phase prepares inputs in the workspace. */
static int is_preparation(const Op *op, const Run *run, int phase) {
    return phase == 0 && shares_inputs(&op->linear, rows_of(run, op->header.row_set));
}

static int num_chunks(const Op *op, const Run *run, int phase) {
    int rows = rows_of(run, op->header.row_set);
    if (is_preparation(op, run, phase)) return (rows + ROWS_PER_PREPARATION - 1) / ROWS_PER_PREPARATION;
    Split split = split_of(&op->linear, rows, run->num_threads);
    return split.elements * split.rows;
}

static Inputs inputs_of(const LinearOp *op, const Run *run, int num_rows, const Scratch *scratch) {
    uint8_t *memory = shares_inputs(op, num_rows) ? run->workspace : scratch->memory;
    return place_inputs(op, num_rows, run->buffers[op->x], memory);
}

static void prepare(const Op *op, const Run *run, int phase, Scratch *scratch) {
    const LinearOp *o = &op->linear;
    const int rows = rows_of(run, op->header.row_set);
    (void)phase;
    if (shares_inputs(o, rows)) return;
    Inputs inputs = inputs_of(o, run, rows, scratch);
    float *row_memory = floats_at(scratch, layout_of(o, rows).row);
    for (int row = 0; row < rows; row++) prepare_input(o, &inputs, row, row_memory);
}

/* One row of results y, with `up` those of up: bias, activation, and to out. */
static void finish_row(const LinearOp *op, float *y, float *up, Chunk chunk, float *out) {
    const int n = chunk.num_elements;
    if (op->bias) {
        const float *bias = op->bias + chunk.first_element;
        for (int i = 0; i < n; i++) y[i] += bias[i];
        if (is_gated(op))
            for (int i = 0; i < n; i++) up[i] += bias[out_width(op) + i];
    }
    switch (op->epilogue) {
        case EPILOGUE_ADD:
            for (int i = 0; i < n; i++) out[i] += y[i];
            return;
        case EPILOGUE_ACT:
            activate(op->activation, y, n);
            break;
        case EPILOGUE_ACT_AND_MUL:
            activate(op->activation, y, n);
            for (int i = 0; i < n; i++) y[i] *= up[i];
            break;
    }
    memcpy(out, y, (size_t)n * 4);
}

static void prepare_shared(const LinearOp *op, const Inputs *inputs, int num_rows, int chunk,
                           float *row_memory) {
    const int first = chunk * ROWS_PER_PREPARATION;
    const int end = min_int(first + ROWS_PER_PREPARATION, num_rows);
    for (int row = first; row < end; row++) prepare_input(op, inputs, row, row_memory);
}

static void compute(const Op *op, const Run *run, int phase, int chunk, Scratch *scratch) {
    const LinearOp *o = &op->linear;
    const int rows = rows_of(run, op->header.row_set), width = run->widths[o->out].width;
    const Layout layout = layout_of(o, rows);
    const Inputs inputs = inputs_of(o, run, rows, scratch);
    if (is_preparation(op, run, phase)) {
        prepare_shared(o, &inputs, rows, chunk, floats_at(scratch, layout.row));
        return;
    }
    const Chunk c = chunk_of(o, rows, split_of(o, rows, run->num_threads), chunk);
    const int first = c.first_element, end = first + c.num_elements, up_row = out_width(o);
    float *results = floats_at(scratch, layout.results) + SLACK, *up = floats_at(scratch, layout.up) + SLACK;
    const LinearRows product = {o, &inputs, rows, c.first_row, c.num_rows, layout.stride,
                                scratch->memory + layout.panel};
    const uint8_t *next = scratch->next_read ? scratch->next_read : weights_at(o, end);
    multiply_weight_rows(&product, first, end, results, is_gated(o) ? weights_at(o, up_row + first) : next);
    if (is_gated(o)) multiply_weight_rows(&product, up_row + first, up_row + end, up, next);
    for (int row = 0; row < c.num_rows; row++) {
        float *out = run->buffers[o->out] + (size_t)(c.first_row + row) * width + first;
        const size_t at = (size_t)row * layout.stride;
        finish_row(o, results + at, up + at, c, out);
    }
}

static size_t workspace_bytes(const Op *op, const Buffer *buffers, int num_tokens, int num_logits) {
    (void)buffers;
    int rows = op->header.row_set == ROWS_LOGITS ? num_logits : num_tokens;
    return shares_inputs(&op->linear, rows) ? inputs_bytes(&op->linear, rows) : 0;
}

static size_t scratch_bytes(const Op *op, const Buffer *buffers, int num_tokens, int num_logits) {
    (void)buffers;
    int rows = op->header.row_set == ROWS_LOGITS ? num_logits : num_tokens;
    return layout_of(&op->linear, rows).nbytes;
}

static const uint8_t *first_read(const Op *op, const Run *run, int phase, int chunk) {
    const LinearOp *o = &op->linear;
    const int rows = rows_of(run, op->header.row_set);
    if (is_preparation(op, run, phase)) return NULL;
    return weights_at(o, chunk_of(o, rows, split_of(o, rows, run->num_threads), chunk).first_element);
}

const OpKernels linear_kernels = {num_phases,      num_chunks,    prepare,   compute,
                                  workspace_bytes, scratch_bytes, first_read};
