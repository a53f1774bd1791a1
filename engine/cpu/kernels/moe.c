/* Mixture of experts, see engine/reference/moe.py. The phases: scores of the router; each row's choice;
   the pairs sorted by expert; their input rows; gate and up; activation; down; the weighted sums. All
   pairs of an expert are multiplied at once, by a GEMV if they are few. */
#include "moe.h"

#include "activation.h"
#include "chunks.h"

enum { SCORE, CHOOSE, NUMBER, INPUT, GATE_UP, ACT, DOWN, SUM, NUM_PHASES };
enum { SCORE_ROWS = MAX_GEMV_ROWS, SCORE_EXPERTS = 16 };
enum { CHOOSE_ROWS = 16, CHUNKS_PER_THREAD = 6, MOST_TILES = 8 };

/* The tiles of all slots, in chunks of one slot's tiles; the shared expert's are last. */
typedef struct {
    int tiles_per_chunk, chunks_per_slot, routed_chunks, num_chunks;
} TileChunks;

static int ceil_div(int a, int b) { return (a + b - 1) / b; }

static TileChunks tile_chunks(const MoeMemory *memory, const Matrix *m, const Matrix *shared,
                              int num_threads) {
    int tiles = num_tiles(m), shared_tiles = memory->shared.num_rows ? num_tiles(shared) : 0;
    int all = memory->max_slots * tiles + shared_tiles;
    TileChunks chunks;
    chunks.tiles_per_chunk = min_int(MOST_TILES, max_int(1, all / (CHUNKS_PER_THREAD * num_threads)));
    chunks.chunks_per_slot = ceil_div(tiles, chunks.tiles_per_chunk);
    chunks.routed_chunks = memory->max_slots * chunks.chunks_per_slot;
    chunks.num_chunks = chunks.routed_chunks + ceil_div(shared_tiles, chunks.tiles_per_chunk);
    return chunks;
}

static MoeMemory memory_of(const MoeOp *op, const Run *run) {
    return moe_memory(op, rows_of(run, op->header.row_set), run->workspace);
}

static const Expert *shared_expert(const MoeOp *op) { return op->experts + op->num_experts; }

static int num_phases(const Op *op, const Run *run) {
    (void)op, (void)run;
    return NUM_PHASES;
}

/* Experts per chunk of scores: few if there are few rows. */
static int score_experts(const MoeOp *op, int n) { return n <= SCORE_ROWS ? SCORE_EXPERTS : op->num_experts; }

static int score_chunks(const MoeOp *op, int n) {
    return ceil_div(n, SCORE_ROWS) * (ceil_div(op->num_experts, score_experts(op, n)) + (op->shared_size > 0));
}

/* A single row's choice, number and input are one chunk. */
static int num_chunks(const Op *op, const Run *run, int phase) {
    const MoeOp *o = &op->moe;
    MoeMemory memory = memory_of(o, run);
    int n = memory.num_rows, num_rows = memory.routed.num_rows + memory.shared.num_rows;
    switch (phase) {
        case SCORE:
            return run->chosen ? 0 : score_chunks(o, n);
        case CHOOSE:
            return ceil_div(n, CHOOSE_ROWS);
        case NUMBER:
            return n > 1;
        case INPUT:
            return n > 1 ? num_rows : 0;
        case GATE_UP:
            return tile_chunks(&memory, &o->experts->gate_up, &shared_expert(o)->gate_up, run->num_threads)
                .num_chunks;
        case ACT:
            return num_rows;
        case DOWN:
            return tile_chunks(&memory, &o->experts->down, &shared_expert(o)->down, run->num_threads)
                .num_chunks;
        default:
            return count_element_chunks(n, o->hidden_size);
    }
}

static void score(const MoeOp *op, const Run *run, const MoeMemory *memory, int chunk) {
    int each = score_experts(op, memory->num_rows);
    int per_row = ceil_div(op->num_experts, each) + (op->shared_size > 0);
    int first_row = chunk / per_row * SCORE_ROWS, part = chunk % per_row;
    int first_expert = min_int(part * each, op->num_experts);
    int is_shared = first_expert == op->num_experts;
    moe_score(op, memory, run->buffers[is_shared ? op->x : op->router_x], first_row,
              min_int(SCORE_ROWS, memory->num_rows - first_row), first_expert,
              min_int(each, op->num_experts - first_expert));
}

/* Put row `row` of the batch into row `to` of the rows for experts. */
static void input_row(const MoeOp *op, const float *x, int row, const ExpertRows *rows, int to) {
    const float *from = x + (size_t)row * op->hidden_size;
    if (rows->x_is_quantized)
        quantize_row(from, op->hidden_size, &rows->quantized_x, to);
    else
        memcpy(rows->x + (size_t)to * op->hidden_size, from, (size_t)op->hidden_size * sizeof(float));
}

/* The most pairs of one expert. */
static int most_pairs(const Routes *routes) {
    int most = 0;
    for (int slot = 0; slot < *routes->num_slots; slot++)
        most = max_int(most, routes->slot_first[slot + 1] - routes->slot_first[slot]);
    return most;
}

/* All experts of a single row read the first rows of `routed`: one, unless given routes repeat an
   expert. */
static void choose(const MoeOp *op, const Run *run, const MoeMemory *memory, int chunk) {
    int first = chunk * CHOOSE_ROWS, last = min_int(memory->num_rows, first + CHOOSE_ROWS);
    for (int row = first; row < last; row++) {
        if (run->chosen)
            moe_take_routes(op, run, memory, row);
        else
            moe_choose(op, memory, row);
    }
    if (memory->num_rows > 1) return;
    moe_number_pairs(op, memory);
    for (int i = 0; i < most_pairs(&memory->routes); i++)
        input_row(op, run->buffers[op->x], 0, &memory->routed, i);
    if (memory->shared.num_rows) input_row(op, run->buffers[op->x], 0, &memory->shared, 0);
}

static void input(const MoeOp *op, const Run *run, const MoeMemory *memory, int chunk) {
    int num_pairs = memory->routed.num_rows;
    if (chunk < num_pairs)
        input_row(op, run->buffers[op->x], memory->routes.pair_row[chunk], &memory->routed, chunk);
    else
        input_row(op, run->buffers[op->x], chunk - num_pairs, &memory->shared, chunk - num_pairs);
}

/* Rows first .. first + n of quantized rows. */
static QuantizedRows some_rows(const QuantizedRows *x, int first, int n) {
    size_t blocks = (size_t)first * (size_t)x->blocks, values = blocks * BLOCK_COLS;
    return (QuantizedRows){n,
                           x->blocks,
                           x->whole + values,
                           x->high + values,
                           x->low + values,
                           x->scale + blocks,
                           x->sum + blocks,
                           x->half_sum + blocks};
}

/* Some vectors, fp32 or quantized: x NULL or not. */
typedef struct {
    const float *x;
    const QuantizedRows *quantized;
    int first, count;
} Vectors;

/* y [count][y_stride] = vectors times some tiles of m. */
static void multiply(const Matrix *m, int tile, int tiles, Vectors vectors, float *y, int y_stride,
                     Scratch *scratch) {
    y += tile * TILE_ROWS;
    const uint8_t *next = NULL;
    if (vectors.quantized) {
        if (tile + tiles < num_tiles(m)) next = m->data + (tile + tiles) * m->stride;
        QuantizedRows x = some_rows(vectors.quantized, vectors.first, vectors.count);
        if (vectors.count <= MAX_GEMV_ROWS)
            gemv_tiles(m, tile, tiles, &x, y, y_stride, next);
        else
            gemm_tiles(m, tile, tiles, &x, 0, vectors.count, y, y_stride, scratch->memory);
        return;
    }
    const float *x = vectors.x + (size_t)vectors.first * m->cols;
    int first = tile * TILE_ROWS, rows = min_int(tiles * TILE_ROWS, m->rows - first);
    if (first + rows < m->rows) next = m->data + (first + rows) * m->stride;
    if (vectors.count <= MAX_GEMV_ROWS && !is_tiled(m))
        gemv_float(m, first, rows, x, vectors.count, y, y_stride, next);
    else
        gemm_float(m, tile, tiles, x, vectors.count, y, y_stride, scratch->memory);
}

/* Compute one chunk of GATE_UP or DOWN. */
static void multiply_chunk(const MoeOp *op, const Run *run, const MoeMemory *memory, int phase, int chunk,
                           Scratch *scratch) {
    int is_down = phase == DOWN;
    const Matrix *routed = is_down ? &op->experts->down : &op->experts->gate_up;
    const Matrix *shared = is_down ? &shared_expert(op)->down : &shared_expert(op)->gate_up;
    TileChunks chunks = tile_chunks(memory, routed, shared, run->num_threads);
    const ExpertRows *rows = &memory->shared;
    int part = chunk - chunks.routed_chunks, first = 0, count = rows->num_rows;
    const Matrix *m = shared;
    if (part < 0) {
        int slot = chunk / chunks.chunks_per_slot;
        if (slot >= *memory->routes.num_slots) return;
        part = chunk % chunks.chunks_per_slot;
        const Expert *expert = op->experts + memory->routes.slot_expert[slot];
        m = is_down ? &expert->down : &expert->gate_up;
        rows = &memory->routed;
        first = memory->routes.slot_first[slot];
        count = memory->routes.slot_first[slot + 1] - first;
    }
    Vectors vectors = {rows->x, rows->x_is_quantized ? &rows->quantized_x : NULL, first, count};
    if (memory->num_rows == 1) vectors.first = 0;
    if (is_down)
        vectors = (Vectors){rows->inner, rows->inner_is_quantized ? &rows->quantized_inner : NULL, first,
                            count};
    int stride = is_down ? rows->y_stride : rows->gate_up_stride, tile = part * chunks.tiles_per_chunk;
    float *y = (is_down ? rows->y : rows->gate_up) + (size_t)first * stride;
    multiply(m, tile, min_int(chunks.tiles_per_chunk, num_tiles(m) - tile), vectors, y, stride, scratch);
}

/* The inner row of one pair, or of one row of the shared expert. */
static void act(const MoeOp *op, const MoeMemory *memory, int chunk, Scratch *scratch) {
    const ExpertRows *rows = &memory->routed;
    int row = chunk;
    const Expert *expert = shared_expert(op);
    if (row < rows->num_rows) {
        expert = op->experts + memory->routes.pair_expert[row];
    } else {
        row -= rows->num_rows;
        rows = &memory->shared;
    }
    float *gate_up = rows->gate_up + (size_t)row * rows->gate_up_stride;
    if (expert->gate_up_bias)
        for (int i = 0; i < expert->gate_up.rows; i++) gate_up[i] += expert->gate_up_bias[i];
    float *inner = (float *)scratch->memory;
    if (!rows->inner_is_quantized) inner = rows->inner + (size_t)row * rows->size;
    act_and_mul_row(&op->act, gate_up, rows->size, 0, rows->size, inner);
    if (rows->inner_is_quantized) quantize_row(inner, rows->size, &rows->quantized_inner, row);
}

/* out += weight * (y + bias) for n elements. */
static void add_weighted(float *out, float weight, const float *y, const float *bias, int n) {
    if (bias)
        for (int i = 0; i < n; i++) out[i] += weight * (y[i] + bias[i]);
    else
        for (int i = 0; i < n; i++) out[i] += weight * y[i];
}

/* The weighted sums of a part of the output: each row's experts in ascending order, then the shared. */
static void sum(const MoeOp *op, const Run *run, const MoeMemory *memory, int chunk) {
    Part part = element_chunk(memory->num_rows, op->hidden_size, chunk);
    const Routes *routes = &memory->routes;
    int k = op->experts_per_token, col = part.first_col;
    for (int row = part.first_row; row < part.first_row + part.num_rows; row++) {
        float *out = run->buffers[op->out] + (size_t)row * op->hidden_size + col;
        memset(out, 0, (size_t)part.num_cols * sizeof(float));
        for (int i = row * k; i < (row + 1) * k; i++) {
            const float *bias = op->experts[routes->chosen[i]].down_bias;
            const float *y = memory->routed.y + (size_t)routes->pair[i] * memory->routed.y_stride;
            add_weighted(out, routes->weight[i], y + col, bias ? bias + col : NULL, part.num_cols);
        }
        if (!memory->shared.num_rows) continue;
        const float *bias = shared_expert(op)->down_bias;
        const float *y = memory->shared.y + (size_t)row * memory->shared.y_stride;
        add_weighted(out, routes->shared_weight[row], y + col, bias ? bias + col : NULL, part.num_cols);
    }
}

static void compute(const Op *op, const Run *run, int phase, int chunk, Scratch *scratch) {
    const MoeOp *o = &op->moe;
    MoeMemory memory = memory_of(o, run);
    switch (phase) {
        case SCORE:
            return score(o, run, &memory, chunk);
        case CHOOSE:
            return choose(o, run, &memory, chunk);
        case NUMBER:
            return moe_number_pairs(o, &memory);
        case INPUT:
            return input(o, run, &memory, chunk);
        case ACT:
            return act(o, &memory, chunk, scratch);
        case SUM:
            return sum(o, run, &memory, chunk);
        default:
            return multiply_chunk(o, run, &memory, phase, chunk, scratch);
    }
}

static size_t workspace_bytes(const Op *op, const Buffer *buffers, int num_tokens, int num_logits) {
    (void)buffers;
    int n = op->header.row_set == ROWS_LOGITS ? num_logits : num_tokens;
    return moe_memory(&op->moe, n, NULL).nbytes;
}

static size_t scratch_bytes(const Op *op, const Buffer *buffers, int num_tokens, int num_logits) {
    (void)buffers, (void)num_tokens, (void)num_logits;
    const MoeOp *o = &op->moe;
    size_t inner = (size_t)max_int(o->expert_size, o->shared_size) * sizeof(float);
    size_t panel = gemm_panel_bytes(&o->experts->gate_up, MOST_TILES);
    size_t down_panel = gemm_panel_bytes(&o->experts->down, MOST_TILES);
    if (down_panel > panel) panel = down_panel;
    return inner > panel ? inner : panel;
}

const OpKernels moe_kernels = {num_phases, num_chunks, 0, compute, workspace_bytes, scratch_bytes};
