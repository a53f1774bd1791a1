// sample: each row's next token: temperature, then top-k, min-p and top-p, then a random number.
//
//   logits       fp32 [n, vocab_size], with penalties applied
//   max_logits   fp32 [n]: the row's maximum, from `argmax`
//   argmax_ids   int32 [n]: its id
//   temperature  fp32 [n]: 0 selects argmax_ids[row], and so does a negative id (no token)
//   top_k        int32 [n]: 0 is off; of equal logits the lowest ids are kept
//   top_p        fp32 [n]: 1 is off; a fraction of the mass that top-k and min-p leave. The token that
//                crosses it is kept
//   min_p        fp32 [n]: 0 is off; a fraction of the largest probability
//   seeds        u64 [n]: the random number is a function of it and the position
//   positions    int32 [n]
//   out          int32 [n]
//   workspace    u64 [max_rows, workspace_stride], see `Work`; the first 1025 words of a row are 0 before the
//                first call and after every call
//
// Algorithm: inverse CDF over the kept tokens, by decreasing logit and then by id, or over all tokens by
// id if nothing truncates. Philox4x32-10 random numbers (Salmon et al., 2011). The mass of a token is
// the integer exp((logit - max) / temperature) * 2^44, so sums do not depend on their order and stay
// below 2^64. Each block sums the masses of its 4096 tokens and lists its candidates: near ones, within
// e^-7.5 of the largest, and far ones, within e^-12. The row's last block sorts them and samples
// (sample_from_candidates). If they do not decide the token, because there are too many or top-p or top-k
// reaches further, that block searches the whole row (sample_from_row), which takes several times longer.
//
// Requires: vocab_size < 2^20.
// Launch: grid (ceil(vocab_size / 4096), n), block 512, no dynamic shared memory (45 KiB static).
// Moves n * vocab_size * 4 bytes.
// Accuracy: the id of the same rule in fp64, unless the random number is within 1e-6 of the border of
// two tokens (fp32 rounding of the exponents). Test: tests/cuda/kernels/test_sample.py
#include "sampling/sample_search.cuh"

__device__ __forceinline__ u64 random_bits(u64 seed, u32 position) {
    u32 c0 = position, c1 = 0, c2 = 0, c3 = 0, k0 = (u32)seed, k1 = (u32)(seed >> 32);
#pragma unroll
    for (int round = 0; round < 10; round++) {
        u32 low0 = 0xD2511F53u * c0, high0 = __umulhi(0xD2511F53u, c0);
        u32 low1 = 0xCD9E8D57u * c2, high1 = __umulhi(0xCD9E8D57u, c2);
        c0 = high1 ^ c1 ^ k0;
        c1 = low1;
        c2 = high0 ^ c3 ^ k1;
        c3 = low0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return (u64)c0 << 21 | c1 >> 11;
}

// Computes a chunk's mass and lists its candidates; if there are too many, adds them to a histogram.
__device__ __forceinline__ void scan_chunk(Shared& s, const Row& row, const Work& work,
                                       const float (&logits)[PER_THREAD]) {
    int first = blockIdx.x * CHUNK + threadIdx.x;
    if (threadIdx.x < 2) s.taken[threadIdx.x] = 0;
    __syncthreads();
    u64 sum = 0, near_sum = 0;
#pragma unroll
    for (int j = 0; j < PER_THREAD; j++) {
        u64 mass = mass_of(row, logits[j]), key = sort_key(logits[j], first + j * THREADS);
        sum += mass;
        if (row.whole) continue;
        int bin = bin_of(logits[j], row.max, row.scale);
        if (bin < NEAR) near_sum += mass;
        int near = reserve_place(&s.taken[0], bin < NEAR);
        int far = reserve_place(&s.taken[1], bin >= NEAR && bin < REST);
        if (0 <= near && near < LIST_SIZE) work.list(blockIdx.x, 0)[near] = key;
        if (0 <= far && far < LIST_SIZE) work.list(blockIdx.x, 1)[far] = key;
    }
    u64 sums[2] = {sum, near_sum};
    block_sums<THREADS>(sums, s.scratch);
    if (threadIdx.x == 0) {
        work.masses[blockIdx.x] = sums[0];
        work.nearby[blockIdx.x] = sums[1];
        work.counts[blockIdx.x] = (u64)s.taken[0] << 32 | (u32)s.taken[1];
    }
    if (max(s.taken[0], s.taken[1]) <= LIST_SIZE) return;
    clear(s.histogram);
    __syncthreads();
#pragma unroll
    for (int j = 0; j < PER_THREAD; j++) {
        int bin = bin_of(logits[j], row.max, row.scale);
        add_warp(s.histogram, bin, mass_of(row, logits[j]), bin < REST);
    }
    __syncthreads();
    if (s.histogram.count[threadIdx.x]) {
        atomicAdd(work.count + threadIdx.x, (u64)s.histogram.count[threadIdx.x]);
        atomicAdd(work.mass + threadIdx.x, bin_mass(s.histogram, threadIdx.x));
    }
}

// Without truncation: samples the first id at which the sum of all masses reaches the target.
__device__ __forceinline__ void sample_by_id(Shared& s, const Row& row, const Work& work, int* out) {
    int thread = threadIdx.x, blocks = gridDim.x;
    s.masses[thread] = block_scan(thread < blocks ? __ldcg(work.masses + thread) : 0, s.scratch[0]);
    __syncthreads();
    u64 target = target_mass(row, s.masses[blocks - 1]);
    int block = first_at_least(s.masses, blocks, target);
    if (block) target -= s.masses[block - 1];
    int first = block * CHUNK + thread * PER_THREAD;
    u64 mass[PER_THREAD], sum = 0;
#pragma unroll
    for (int j = 0; j < PER_THREAD; j++) {
        mass[j] = first + j < row.vocab_size ? mass_of(row, row.logits[first + j]) : 0;
        sum += mass[j];
    }
    u64 before = block_scan(sum, s.scratch[0]) - sum;
#pragma unroll
    for (int j = 0; j < PER_THREAD; j++) {
        if (before < target && target <= before + mass[j]) *out = first + j;
        before += mass[j];
    }
}

// Loads all n near or far candidates of the row into the list; `count` has the numbers of this
// thread's chunk.
__device__ __forceinline__ void load_candidates(Shared& s, const Work& work, u64* list, int far,
                                                int n, u64 count) {
    constexpr int EACH = MAX_CANDIDATES / THREADS;
    int thread = threadIdx.x, blocks = gridDim.x;
    s.counts[thread] = (u32)block_scan(far ? num_far(count) : num_near(count), s.scratch[0]);
    __syncthreads();
    u64 keys[EACH];
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        int i = thread + j * THREADS;
        if (i >= n) continue;
        int block = first_at_least(s.counts, blocks, i + 1);
        keys[j] = __ldcg(work.list(block, far) + i - (block ? s.counts[block - 1] : 0));
    }
#pragma unroll
    for (int j = 0; j < EACH; j++)
        if (thread + j * THREADS < n) list[thread + j * THREADS] = keys[j];
    __syncthreads();
}

// Samples from the near candidates if they suffice, else from all candidates. The tokens that are not
// listed leave a range for the mass of which top-p is a fraction; returns false unless both ends of the
// range lead to the same token.
__device__ __forceinline__ bool sample_from_candidates(Shared& s, const Row& row, const Work& work,
                                                     u64 total, u64 near_mass, u64 counts,
                                                     u64 count, int* out) {
    int thread = threadIdx.x, n = num_near(counts);
    bool limited = row.top_k < row.vocab_size;
    bool enough = limited ? n >= row.top_k : near_mass >= kept_mass(row, total);
    if ((enough ? n : n + num_far(counts)) > MAX_CANDIDATES) return false;
    load_candidates(s, work, s.list, 0, n, count);
    if (!enough) {
        load_candidates(s, work, s.list + n, 1, num_far(counts), count);
        n += num_far(counts);
    }
    sort_and_sum(s, row, n, row.top_k);
    if (thread < 2) {
        u64 seen = s.sums[n - 1];
        u64 unseen = n < row.top_k ? (u64)(row.top_k - n) * FAR : 0;
        u64 mass = !limited ? total : thread ? min(total, seen + unseen) : seen;
        u64 kept = kept_mass(row, mass);
        if (kept <= seen) kept = s.sums[first_at_least(s.sums, n, kept)];
        else if (thread) kept = mass;
        s.choice[thread] = first_at_least(s.sums, n, target_mass(row, kept));
    }
    __syncthreads();
    int choice = s.choice[0];
    if (choice == n || choice != s.choice[1]) return false;
    if (thread == 0) *out = key_id(s.list[choice]);
    return true;
}

// With truncation: samples in the row's last block.
__device__ __forceinline__ void sample_by_rank(Shared& s, const Row& row, const Work& work,
                                             int* out) {
    int thread = threadIdx.x;
    Chunk chunk(work, thread < gridDim.x);
    u64 sums[3] = {chunk.mass, chunk.near_mass, chunk.count};
    // An incomplete list counts as too long.
    if (num_near(chunk.count) > LIST_SIZE) sums[2] += (u64)(MAX_CANDIDATES + 1) << 32;
    if (num_far(chunk.count) > LIST_SIZE) sums[2] += MAX_CANDIDATES + 1;
    block_sums<THREADS>(sums, s.scratch);
    u64 total = sums[0], counts = sums[2];
    if (!sample_from_candidates(s, row, work, total, sums[1], counts, chunk.count, out))
        sample_from_row(s, row, work, total, out);
    // Clear the histogram, if there is one, for the next call.
    if (max(num_near(counts), num_far(counts)) > MAX_CANDIDATES)
        work.mass[thread] = work.count[thread] = 0;
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
sample_kernel(const float* logits, const float* max_logits, const int* argmax_ids, const float* temperature,
              const int* top_k, const float* top_p, const float* min_p, const u64* seeds,
              const int* positions, int* out, u64* workspace, i64 workspace_stride, int vocab_size) {
    __shared__ Shared s;
    start_dependents();
    wait_for_upstream();
    // All loads are in flight together.
    int r = blockIdx.y, k = top_k[r], greedy = argmax_ids[r], position = positions[r];
    float temp = temperature[r], largest = max_logits[r], row_top_p = top_p[r], row_min_p = min_p[r];
    u64 seed = seeds[r];
    float chunk[PER_THREAD];
#pragma unroll
    for (int j = 0; j < PER_THREAD; j++) {
        int id = blockIdx.x * CHUNK + threadIdx.x + j * THREADS;
        // Past the end -infinity: no mass, and no candidate.
        chunk[j] = id < vocab_size ? logits[(i64)r * vocab_size + id] : -infinity();
    }
    if (temp == 0 || greedy < 0) {
        if (blockIdx.x == 0 && threadIdx.x == 0) out[r] = greedy;
        return;
    }
    Row row;
    row.logits = logits + (i64)r * vocab_size;
    row.vocab_size = vocab_size;
    row.max = largest;
    row.sharpness = __fdiv_rn(1.f, fmaxf(temp, 1e-6f));
    row.scale = row.sharpness * (BINS / REACH);
    row.top_k = 0 < k && k < vocab_size ? k : vocab_size;
    row.top_p = row_top_p;
    row.floor = __float2ull_ru(row_min_p * (float)ONE);
    row.uniform = random_bits(seed, (u32)position);
    row.whole = row.top_k == vocab_size && row.floor == 0 && row.top_p >= 1;
    Work work(workspace + r * workspace_stride, gridDim.x);
    scan_chunk(s, row, work, chunk);
    __syncthreads();
    if (threadIdx.x == 0) {
        s.last = count_arrival(work.finished) + 1 == gridDim.x;
        if (s.last) *work.finished = 0;
    }
    __syncthreads();
    if (!s.last) return;
    if (row.whole) sample_by_id(s, row, work, out + r);
    else sample_by_rank(s, row, work, out + r);
}
