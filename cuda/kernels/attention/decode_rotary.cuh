// With ROTARY decode_attention does what `rotary` does for one token of a sequence. Each block normalizes and rotates its
// queries and the newest key, and keeps them in shared memory; one block stores the newest key and value in the
// cache. So queries are not written to memory, and no kernel runs between the projection and the attention.
#pragma once
#include "attention/decode_loader.cuh"
#include "attention/rotary_head.cuh"

// The arguments are those of `rotary`; if q_norm is null, heads are not normalized. Behind the queries of a sequence come
// num_gate_heads heads that are not read, then keys, then values.
struct RotaryArguments {
    const T *q_norm, *k_norm;
    const float* cos_sin;
    const int *positions, *slot_mapping;
    int rotary_dim, num_gate_heads;
    float eps, weight_offset;
};

constexpr int ITEMS = HEAD_DIM / (2 * W);                 // threads that share a head
constexpr int GROUPS = THREADS / ITEMS;                   // heads that a block prepares at a time
constexpr int PASSES = (ROWS + 2 + GROUPS - 1) / GROUPS;  // until all are prepared

// The block's queries, the newest key and the newest value, in shared memory.
using RotatedHeads = T[ROWS + 2][HEAD_DIM];

// A thread's place in each of its heads, and the norm weights and angles there, which are loaded before the projection
// ends.
struct HeadRotation {
    int low, high, slot;
    bool rotated;
    NormWeight query, key;
    Pack<float, W> cos{}, sin{};

    __device__ __forceinline__ HeadRotation(const RotaryArguments& a, int sequence) {
        int item = threadIdx.x % ITEMS, half_dim = a.rotary_dim / 2;
        rotated = item < half_dim / W;
        low = rotated ? item * W : 2 * W * item;
        high = rotated ? low + half_dim : low + W;
        slot = a.slot_mapping[sequence];
        if (a.q_norm) {
            query = {load<W>(a.q_norm + low), load<W>(a.q_norm + high)};
            key = {load<W>(a.k_norm + low), load<W>(a.k_norm + high)};
        }
        if (rotated) {
            const float* angles = a.cos_sin + (i64)a.positions[sequence] * a.rotary_dim + low;
            cos = load<W>(angles);
            sin = load<W>(angles + half_dim);
        }
    }

    // Prepares the block's heads in `to`. `qkv` are all heads of the sequence, num_heads of them queries. Without `reads`
    // zeros are prepared.
    __device__ __forceinline__ void write(const RotaryArguments& a, const T* qkv, const Heads& heads, int num_heads,
                                          int num_kv_heads, RotatedHeads& to, bool reads) const {
        Item loaded[PASSES];
        int group = threadIdx.x / ITEMS;
        const T* keys = qkv + (i64)(num_heads + a.num_gate_heads + heads.kv_head) * HEAD_DIM;
#pragma unroll
        for (int pass = 0; pass < PASSES; pass++) {
            int i = group + pass * GROUPS, kv = i - heads.count;  // 0: key, 1: value
            loaded[pass] = {};
            if (kv > 1 || !reads) continue;
            const T* from = kv < 0 ? qkv + (i64)(heads.first + i) * HEAD_DIM : keys + (i64)kv * num_kv_heads * HEAD_DIM;
            loaded[pass].low = load_from_l2<W>(from + low);
            loaded[pass].high = load_from_l2<W>(from + high);
        }
#pragma unroll
        for (int pass = 0; pass < PASSES; pass++) {
            int i = group + pass * GROUPS, kv = i - heads.count;
            if (kv > 1) continue;
            if (kv < 1) {
                float at[2 * W];
                unpack(loaded[pass], at);
                if (a.q_norm) normalize(at, kv < 0, query, key, ITEMS, a.eps, a.weight_offset);
                if (rotated) rotate(at, cos, sin);
                pack(at, loaded[pass]);
            }
            T* row = to[kv < 0 ? i : ROWS + kv];
            store(row + low, loaded[pass].low);
            store(row + high, loaded[pass].high);
        }
    }
};

// The newest key and value, for the warp whose steps include their token: in its tiles they replace what the cache has.
struct Newest {
    const uint4* rows;
    int index, row;  // the step, or -1: another warp has it; the token's row in the tile

    __device__ __forceinline__ Newest(const RotatedHeads& heads, const TokenRange& range)
        : rows((const uint4*)heads[ROWS]) {
        index = range.has_new(range.count - 1, 1) ? range.count - 1 : -1;
        row = range.end - 1 - range.token(range.count - 1);
    }
    // `which` is 0 for a tile of keys, 1 for one of values.
    __device__ __forceinline__ void put(int step, int tile, int which) const {
        if (step != index) return;
        for (int chunk = lane(); chunk < CHUNKS; chunk += WARP)
            shared[tile + chunk_at(row, chunk)] = rows[which * CHUNKS + chunk];
        __syncwarp();
    }
    // Stores both in the cache.
    __device__ __forceinline__ void store_at(int slot, T* cache, int kv_head, int num_kv_heads,
                                             int log2_block_size) const {
        if (index < 0 || slot < 0) return;
        int within = slot & ((1 << log2_block_size) - 1);
#pragma unroll
        for (int kv = 0; kv < 2; kv++) {
            i64 head = (i64)(slot >> log2_block_size) * 2 * num_kv_heads + kv * num_kv_heads + kv_head;
            uint4* to = (uint4*)(cache + ((head << log2_block_size) + within) * HEAD_DIM);
            for (int chunk = lane(); chunk < CHUNKS; chunk += WARP) to[chunk] = rows[kv * CHUNKS + chunk];
        }
    }
};
