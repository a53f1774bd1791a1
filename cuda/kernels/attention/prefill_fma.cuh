// The fp32 path of prefill_attention, which includes it: 16 queries a block, FMAs.
#pragma once
constexpr int THREADS = 128, ROWS = 16, KEYS = DIM > 256 ? 16 : 32, SHARERS = THREADS / ROWS;
constexpr int STRIDE = DIM + 1;  // rows begin in different banks

// Eight threads share a row: each computes every eighth score and every eighth column of the output.
__device__ __forceinline__ void attend(const Arguments& a, const QueryTile& w, u8* shared) {
    float *q = (float*)shared, *k = q + ROWS * STRIDE, *v = k + KEYS * STRIDE;
    float* weights = v + KEYS * STRIDE;
    int row = threadIdx.x / SHARERS, part = threadIdx.x % SHARERS;
    for (int e = threadIdx.x; e < ROWS * DIM; e += THREADS) {
        int r = e / DIM, d = e % DIM;
        bool valid = r < w.num_rows && d < a.head_dim;
        q[r * STRIDE + d] = valid ? to_float(w.q[r * a.q_stride + d]) : 0.f;
    }
    int begin, end;
    w.span(0, ROWS, begin, end);
    int row_begin = w.key_begin(row), row_end = min(w.key_end(row), w.context);
    float sink = w.sink(a, row), row_max = sink, sum = part == 0 && sink > -infinity() ? 1 : 0;
    float o[DIM / SHARERS] = {};
    for (int first = begin / KEYS * KEYS; first < end; first += KEYS) {
        __syncthreads();  // all threads have read the tile before
        for (int e = threadIdx.x; e < KEYS * DIM; e += THREADS) {
            int key = e / DIM, d = e % DIM, at = key_row(a, w, first + key, begin);
            bool valid = at >= 0 && d < a.head_dim;
            const T* from = w.keys + (valid ? (i64)at * a.head_dim + d : 0);
            k[key * STRIDE + d] = valid ? to_float(from[0]) : 0.f;
            v[key * STRIDE + d] = valid ? to_float(from[w.values]) : 0.f;
        }
        __syncthreads();
        float s[KEYS / SHARERS] = {}, greatest = row_max;
        for (int d = 0; d < DIM; d++)
#pragma unroll
            for (int i = 0; i < KEYS / SHARERS; i++)
                s[i] += q[row * STRIDE + d] * k[(part + i * SHARERS) * STRIDE + d];
#pragma unroll
        for (int i = 0; i < KEYS / SHARERS; i++) {
            int key = first + part + i * SHARERS;
            s[i] *= a.scale;
            if (BIASED && a.softcap > 0) s[i] = a.softcap * tanhf(s[i] / a.softcap);
            if (BIASED) s[i] += w.slope * (key - w.position - row);
            if (key < row_begin || key >= row_end) s[i] = -infinity();
            greatest = fmaxf(greatest, s[i]);
        }
#pragma unroll
        for (int offset = SHARERS / 2; offset; offset /= 2)
            greatest = fmaxf(greatest, __shfl_xor_sync(ALL, greatest, offset));
        float base = greatest == -infinity() ? 0.f : greatest, rescale = expf(row_max - base);
        row_max = greatest;
        sum *= rescale;
#pragma unroll
        for (int i = 0; i < KEYS / SHARERS; i++) {
            float weight = expf(s[i] - base);
            sum += weight;
            weights[row * (KEYS + 1) + part + i * SHARERS] = weight;
        }
        __syncwarp();  // all threads of a row are in one warp
#pragma unroll
        for (int i = 0; i < DIM / SHARERS; i++) o[i] *= rescale;
        for (int key = 0; key < KEYS; key++)
#pragma unroll
            for (int i = 0; i < DIM / SHARERS; i++)
                o[i] += weights[row * (KEYS + 1) + key] * v[key * STRIDE + part + i * SHARERS];
    }
#pragma unroll
    for (int offset = SHARERS / 2; offset; offset /= 2) sum += __shfl_xor_sync(ALL, sum, offset);
    if (row >= w.num_rows) return;
#pragma unroll
    for (int i = 0; i < DIM / SHARERS; i++) {
        int d = part + i * SHARERS;
        if (d < a.head_dim)
            w.out[(i64)row * a.num_heads * a.head_dim + d] = sum > 0 ? o[i] / sum : 0.f;
    }
}
