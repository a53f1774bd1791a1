/* Routing of a mixture of experts: scores, chosen experts, and the pairs sorted by expert. */
#include "fast_math.h"
#include "moe.h"

/* Take `nbytes` of the memory, at a multiple of 64 bytes. */
static void *take(uint8_t *memory, size_t *used, size_t nbytes) {
    uint8_t *taken = memory ? memory + *used : NULL;
    *used += round_up_64(nbytes);
    return taken;
}

static int is_quantized(const MoeOp *op, const Matrix *m) { return is_tiled(m) && !op->exact; }

static ExpertRows expert_rows(const MoeOp *op, const Expert *expert, int num_rows, int size,
                              uint8_t *memory, size_t *used) {
    const int tile = TILE_ROWS - 1, hidden = op->hidden_size;
    ExpertRows rows = {.num_rows = num_rows, .size = size};
    rows.gate_up_stride = (expert->gate_up.rows + tile) & ~tile;
    rows.y_stride = (hidden + tile) & ~tile;
    rows.x_is_quantized = is_quantized(op, &expert->gate_up);
    rows.inner_is_quantized = is_quantized(op, &expert->down);
    size_t n = (size_t)num_rows;
    if (rows.x_is_quantized) {
        uint8_t *at = take(memory, used, quantized_rows_bytes(num_rows, hidden));
        if (memory) rows.quantized_x = place_quantized_rows(at, num_rows, hidden);
    } else {
        rows.x = take(memory, used, n * (size_t)hidden * sizeof(float));
    }
    rows.gate_up = take(memory, used, n * (size_t)rows.gate_up_stride * sizeof(float));
    if (rows.inner_is_quantized) {
        uint8_t *at = take(memory, used, quantized_rows_bytes(num_rows, size));
        if (memory) rows.quantized_inner = place_quantized_rows(at, num_rows, size);
    } else {
        rows.inner = take(memory, used, n * (size_t)size * sizeof(float));
    }
    rows.y = take(memory, used, n * (size_t)rows.y_stride * sizeof(float));
    return rows;
}

MoeMemory moe_memory(const MoeOp *op, int n, uint8_t *memory) {
    size_t used = 0, num_pairs = (size_t)n * (size_t)op->experts_per_token;
    MoeMemory m = {.num_rows = n};
    m.max_slots = num_pairs < (size_t)op->num_experts ? (int)num_pairs : op->num_experts;
    size_t slots = (size_t)m.max_slots;
    m.routes.num_slots = take(memory, &used, sizeof(int32_t));
    m.routes.slot_expert = take(memory, &used, slots * sizeof(int32_t));
    m.routes.slot_first = take(memory, &used, (slots + 1) * sizeof(int32_t));
    m.routes.chosen = take(memory, &used, num_pairs * sizeof(int32_t));
    m.routes.weight = take(memory, &used, num_pairs * sizeof(float));
    m.routes.pair = take(memory, &used, num_pairs * sizeof(int32_t));
    m.routes.pair_row = take(memory, &used, num_pairs * sizeof(int32_t));
    m.routes.pair_expert = take(memory, &used, num_pairs * sizeof(int32_t));
    m.routes.scores = take(memory, &used, (size_t)n * (size_t)op->num_experts * sizeof(float));
    m.routes.shared_weight = take(memory, &used, (size_t)n * sizeof(float));
    m.routed = expert_rows(op, op->experts, (int)num_pairs, op->expert_size, memory, &used);
    if (op->shared_size)
        m.shared = expert_rows(op, op->experts + op->num_experts, n, op->shared_size, memory, &used);
    m.nbytes = used;
    return m;
}

void moe_score(const MoeOp *op, const MoeMemory *memory, const float *x, int first_row, int num_rows,
               int first_expert, int num_experts) {
    const float *rows = x + (size_t)first_row * op->hidden_size;
    if (first_expert == op->num_experts) {
        float *weight = memory->routes.shared_weight + first_row;
        if (!op->shared_router.data) {
            for (int i = 0; i < num_rows; i++) weight[i] = 1.0f;
            return;
        }
        gemv_float(&op->shared_router, 0, 1, rows, num_rows, weight, 1, NULL);
        for (int i = 0; i < num_rows; i++) weight[i] = fast_sigmoid(weight[i]);
        return;
    }
    float *scores = memory->routes.scores + (size_t)first_row * op->num_experts + first_expert;
    gemv_float(&op->router, first_expert, num_experts, rows, num_rows, scores, op->num_experts, NULL);
    if (!op->router_bias) return;
    for (int i = 0; i < num_rows; i++)
        for (int j = 0; j < num_experts; j++)
            scores[(size_t)i * op->num_experts + j] += op->router_bias[first_expert + j];
}

/* x = softmax(x) for n elements. */
static void softmax(float *x, int n) {
    float largest = x[0], sum = 0;
    for (int i = 1; i < n; i++) largest = x[i] > largest ? x[i] : largest;
    for (int i = 0; i < n; i++) x[i] = fast_exp(x[i] - largest);
    for (int i = 0; i < n; i++) sum += x[i];
    for (int i = 0; i < n; i++) x[i] /= sum;
}

/* Insert an expert into a row's chosen ones, which are in ascending order. */
static void insert(int32_t *chosen, float *weights, int count, int expert, float weight) {
    int at = count;
    for (; at > 0 && chosen[at - 1] > expert; at--) {
        chosen[at] = chosen[at - 1];
        weights[at] = weights[at - 1];
    }
    chosen[at] = expert;
    weights[at] = weight;
}

/* The score of an expert for the choice. */
static float choice(const MoeOp *op, const float *weights, int expert) {
    return weights[expert] + (op->correction ? op->correction[expert] : 0.0f);
}

/* Mark the experts outside of the groups with the largest sums of their two best scores. */
static void leave_groups(const MoeOp *op, float *weights) {
    const int size = op->num_experts / op->groups;
    float totals[MAX_EXPERT_GROUPS];
    int is_top[MAX_EXPERT_GROUPS] = {0};
    for (int g = 0; g < op->groups; g++) {
        float first = choice(op, weights, g * size), second = 0;
        for (int e = 1; e < size; e++) {
            float score = choice(op, weights, g * size + e), lower = score > first ? first : score;
            second = e == 1 || lower > second ? lower : second;
            first = score > first ? score : first;
        }
        totals[g] = first + second;
    }
    for (int i = 0; i < op->top_groups; i++) {
        int best = -1;
        for (int g = 0; g < op->groups; g++)
            if (!is_top[g] && (best < 0 || totals[g] > totals[best])) best = g;
        is_top[best] = 1;
    }
    for (int e = 0; e < op->num_experts; e++)
        if (!is_top[e / size]) weights[e] = -1;
}

void moe_choose(const MoeOp *op, const MoeMemory *memory, int row) {
    int k = op->experts_per_token;
    float *weights = memory->routes.scores + (size_t)row * op->num_experts, sum = 0;
    int32_t *chosen = memory->routes.chosen + (size_t)row * k;
    float *chosen_weights = memory->routes.weight + (size_t)row * k;
    if (op->sigmoid)
        for (int e = 0; e < op->num_experts; e++) weights[e] = fast_sigmoid(weights[e]);
    else
        softmax(weights, op->num_experts);
    if (op->groups > 1) leave_groups(op, weights);
    for (int i = 0; i < k; i++) {
        int best = -1; /* of those that are not chosen yet, which a negative weight marks */
        for (int e = 0; e < op->num_experts; e++)
            if (!(weights[e] < 0) && (best < 0 || choice(op, weights, e) > choice(op, weights, best)))
                best = e;
        insert(chosen, chosen_weights, i, best, weights[best]);
        sum += weights[best];
        weights[best] = -1;
    }
    if (op->normalized)
        for (int i = 0; i < k; i++) chosen_weights[i] /= sum + op->eps;
    for (int i = 0; i < k; i++) chosen_weights[i] *= op->scale;
    if (op->expert_scales)
        for (int i = 0; i < k; i++) chosen_weights[i] *= op->expert_scales[chosen[i]];
}

void moe_take_routes(const MoeOp *op, const Run *run, const MoeMemory *memory, int row) {
    const int k = op->experts_per_token;
    const size_t first = (size_t)row * k;
    for (int i = 0; i < k; i++) {
        int expert = run->chosen[first + i], exists = expert >= 0 && expert < op->num_experts;
        insert(memory->routes.chosen + first, memory->routes.weight + first, i, exists ? expert : 0,
               exists ? run->chosen_weights[first + i] : 0);
    }
}

void moe_number_pairs(const MoeOp *op, const MoeMemory *memory) {
    const Routes *r = &memory->routes;
    int k = op->experts_per_token, num_pairs = memory->num_rows * k, slots = 0, first = 0;
    /* The scores are no longer needed: count each expert's pairs there, then keep its next one. */
    int32_t *next = (int32_t *)r->scores;
    memset(next, 0, (size_t)op->num_experts * sizeof(int32_t));
    for (int i = 0; i < num_pairs; i++) next[r->chosen[i]]++;
    for (int e = 0; e < op->num_experts; e++) {
        int count = next[e];
        next[e] = first;
        if (count == 0) continue;
        r->slot_expert[slots] = e;
        r->slot_first[slots++] = first;
        first += count;
    }
    r->slot_first[slots] = first;
    *r->num_slots = slots;
    for (int i = 0; i < num_pairs; i++) {
        int pair = next[r->chosen[i]]++;
        r->pair[i] = pair;
        r->pair_row[pair] = i / k;
        r->pair_expert[pair] = r->chosen[i];
    }
}
