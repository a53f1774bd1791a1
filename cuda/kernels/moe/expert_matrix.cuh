// Products of rows of experts' matrices with activation rows, for packed_gate_up and expert_down.
//
// SCHEME is PLAIN (elements of T) or one of schemes/. Thread (g, t) = (lane / 4, lane % 4) of a warp
// multiplies row g of eight `low` rows and row g of eight `high` rows: a step is 16 bytes of each, which the thread
// copies to its own slots of shared memory several steps ahead, so no barrier is needed. A unit is all steps of such
// rows; the warps of a block divide the steps of its units. The low rows are multiplied with one activation row, the
// high rows with another or the same: in an mma the even columns are one of them, the odd columns the other.
#pragma once
#include "common/mma.cuh"
#include "linear/packed_layout.cuh"

constexpr bool MMA = !Same<T, float>::value;
constexpr int COLUMNS = 16 * 8 / BITS;           // of a thread in a step
constexpr int FRAGMENT = 16 / sizeof(T);         // activations in 16 bytes
constexpr int FRAGMENTS = COLUMNS / FRAGMENT;    // of a thread in a step
constexpr int STEP_COLUMNS = 4 * COLUMNS;
constexpr int WORD_ENTRIES = 4 / ENTRY_BYTES;    // entries of groups in the word that is copied for a thread
constexpr int STEP_SLOT_BYTES = (16 + (GROUPED ? 4 : 0)) * WARP * 2;  // of a warp for a step

// Copies 16 bytes that are read once to shared memory, or zeros.
__device__ __forceinline__ void copy_16(u32 to, const void* from, bool valid, u64 policy) {
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(to),
                 "l"(__cvta_generic_to_global(from)), "r"(valid ? 16 : 0), "l"(policy)
                 : "memory");
}
__device__ __forceinline__ void copy_4(u32 to, const void* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(__cvta_generic_to_global(from))
                 : "memory");
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LEFT> __device__ __forceinline__ void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}
__device__ __forceinline__ u64 read_once() {
    u64 policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

// Brings tables of addresses, which no kernel writes, to L1.
__device__ __forceinline__ void touch_tables(const u64* values, const u64* scales, int num_experts) {
    for (int i = threadIdx.x * 16; i < num_experts; i += blockDim.x * 16) {
        asm volatile("{ .reg .u64 ignored; ld.global.nc.u64 ignored, [%0]; }" ::"l"(
            __cvta_generic_to_global(values + i)));
        if (ROW_SCALES)
            asm volatile("{ .reg .u64 ignored; ld.global.nc.u64 ignored, [%0]; }" ::"l"(
                __cvta_generic_to_global(scales + i)));
    }
}

// A thread's row of a matrix.
struct Row {
    const u8* values;
    const u8* scales;  // the element of `row_scale`
    int end;           // steps in which the thread has columns

    __device__ __forceinline__ Row() = default;
    // The first `columns` of row `row` of a matrix with `stride` columns; of packed matrices row % 8 is lane / 4,
    // unless row is the last.
    __device__ __forceinline__ Row(u64 values_address, u64 scales_address, i64 row, int columns, int stride) {
        int lane = threadIdx.x % WARP, t = lane % 4;
        if (PACKED) {
            end = padded_columns(columns) / STEP_COLUMNS;
            i64 block_bytes = padded_columns(stride) / STEP_COLUMNS * PACKED_TILE_BYTES;
            values = (const u8*)values_address + row / TILE_ROWS * block_bytes + lane * 16;
            scales = (const u8*)scales_address + row * 4;
        } else {
            end = (columns * (int)sizeof(T) - t * 16 + 63) / 64;
            values = (const u8*)values_address + row * stride * (int)sizeof(T) + t * 16;
        }
    }
    // Starts the copies of a step to a slot in shared memory; `which` is 0 (low) or 1 (high). Without `reads` zeros are
    // copied.
    __device__ __forceinline__ void copy(u32 slot, int which, int step, u64 policy, bool reads) const {
        int lane = threadIdx.x % WARP, t = lane % 4;
        bool valid = reads && (PACKED || step < end);
        const u8* from = values + (valid ? step * (PACKED ? PACKED_TILE_BYTES : 64) : 0);
        copy_16(slot + (which * WARP + lane) * 16, from, valid, policy);
        u32 table = slot + WARP * 32 + (which * WARP + lane) * 4;
        if (!GROUPED || !valid) return;
        const u8* entries = from - lane * 16 + TILE_ROWS * STEP_BYTES;
        if (!SCALED_SUMS) copy_4(table, entries + thread_entries());  // the word with the entries of the row
        else if (t < TILE_GROUPS)                                 // or with that of the step's group t
            copy_4(table, entries + (t * TILE_ROWS + lane / 4) / WORD_ENTRIES * 4);
    }
};

// The number of steps of a row, and the bytes that its activations take in shared memory: odd multiples of 64,
// so that threads read the low and the high rows' activations from different banks.
__device__ __forceinline__ int steps_of(int columns) { return (columns + STEP_COLUMNS - 1) / STEP_COLUMNS; }
__device__ __forceinline__ int activation_bytes(int columns) {
    int fragments = steps_of(columns) * FRAGMENTS;
    return fragments * 64 + (fragments % 2 ? 0 : 64);
}
// The sums of activations over 32 columns, which zero points need.
__device__ __forceinline__ int num_sums(int columns) { return ZERO_POINTS ? steps_of(columns) * STEP_COLUMNS / 32 : 0; }

// The sum of eight activations.
__device__ __forceinline__ float sum_of(const uint4& v) {
    float sum = 0;
    const u32 words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int j = 0; j < 8; j++) sum += to_float(((const T*)words)[j]);
    return sum;
}
// Eight activations in the order of unpacked pairs.
__device__ __forceinline__ uint4 in_pairs(const uint4& v) {
    if (BITS == 4)
        return {__byte_perm(v.x, v.y, 0x5410), __byte_perm(v.x, v.y, 0x7632), __byte_perm(v.z, v.w, 0x5410),
                __byte_perm(v.z, v.w, 0x7632)};
    return v;
}

// The first column of place `at` in the order of the threads' fragments.
__device__ __forceinline__ int column_of_place(int at) {
    int t = at % 4, i = at / 4 % FRAGMENTS, step = at / 4 / FRAGMENTS;
    return step * STEP_COLUMNS + (GROUPED ? i * 32 + t * FRAGMENT : t * COLUMNS + i * FRAGMENT);
}

// Writes activations to their place in shared memory, and for zero points the sum of 32 columns. A warp calls it for
// neighboring places.
__device__ __forceinline__ void stage(u8* to, float* sums, int at, const uint4& v, bool valid) {
    if constexpr (ZERO_POINTS && MMA) {
        float sum = sum_of(v);
        sum += __shfl_xor_sync(ALL, sum, 1);
        sum += __shfl_xor_sync(ALL, sum, 2);
        if (valid && threadIdx.x % 4 == 0) sums[at / 4] = sum;
    }
    if (valid) ((uint4*)to)[at] = in_pairs(v);
}

// Copies activation rows to shared memory in the order of the threads' fragments, zeros after the ends of rows. All
// threads of the block take part; a warp has AT_ONCE loads in flight. Without `reads` zeros are copied.
template <int WARPS>
__device__ __forceinline__ void stage_activations(u8* to, float* sums, const T* from, int num_rows, int columns,
                                                  bool reads = true) {
    constexpr int AT_ONCE = 4;
    int count = steps_of(columns) * FRAGMENTS * 4, parts = (count + WARP - 1) / WARP;  // parts of a row
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, stride = activation_bytes(columns);
    for (int base = warp; base < num_rows * parts; base += WARPS * AT_ONCE) {
        uint4 v[AT_ONCE];
        int row[AT_ONCE], at[AT_ONCE];
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++) {
            int part = base + u * WARPS;
            row[u] = part / parts;
            at[u] = (part - row[u] * parts) * WARP + lane;
            int column = column_of_place(at[u]);
            v[u] = {};
            if (reads && row[u] < num_rows && column < columns)
                v[u] = __ldcg((const uint4*)(from + row[u] * columns + column));
        }
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++)
            stage(to + row[u] * stride, sums + row[u] * num_sums(columns), at[u], v[u],
                  row[u] < num_rows && at[u] < count);
    }
}

// Activations in shared memory for the low and the high rows.
struct Activations {
    const u8* rows[2];
    const float* sums[2];
};

// What a thread multiplies in a step: 16 bytes of a low and of a high row.
union Words {
    uint4 bits[2];
    u32 words[2][4];
};

// The sums of a thread's low row and high row. Without MMA they are those of this thread's columns, otherwise those
// of all columns that its warp has added.
struct Sums {
    float found[2] = {};
    float products[2][4] = {};  // of ungrouped matrices; an mma waits for the accumulator of the one before

    // Adds the products of a step in a slot.
    __device__ __forceinline__ void add(const u8* slot, int step, const Row (&rows)[2], const Activations& x) {
        int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
        Words w;
        w.bits[0] = ((const uint4*)slot)[lane];
        w.bits[1] = ((const uint4*)slot)[WARP + lane];
        const u32* table = (const u32*)(slot + WARP * 32);
        if constexpr (!MMA) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float4 v = ((const float4*)x.rows[i])[step * 4 + t];
                found[i] += __uint_as_float(w.words[i][0]) * v.x + __uint_as_float(w.words[i][1]) * v.y +
                            __uint_as_float(w.words[i][2]) * v.z + __uint_as_float(w.words[i][3]) * v.w;
            }
        } else if constexpr (SCALED_SUMS) {
            const Entry* entries = (const Entry*)table + g % WORD_ENTRIES;
            add_groups<WORD_ENTRIES>(w.words, step, entries + g * 4 * WORD_ENTRIES,
                                     entries + WARP * WORD_ENTRIES + g * 4 * WORD_ENTRIES, x);
        } else {
            u32 scales[2] = {};
#pragma unroll
            for (int i = 0; i < 2; i++)
                if (GROUPED) scales[i] = table[i * WARP + lane];
            add_pairs<FRAGMENTS>(products, w.words, scales, fragments(x, step), 0);
        }
    }

    // Adds the products of a step, whose eight low and eight high rows are in shared memory. This thread's 16 bytes of
    // them are at `offset`; a packed tile has its scales and zero points behind its values.
    __device__ __forceinline__ void add_rows(const u8* low, const u8* high, int offset, int step, const Activations& x) {
        Words w;
        w.bits[0] = *(const uint4*)(low + offset);
        w.bits[1] = *(const uint4*)(high + offset);
        if constexpr (SCALED_SUMS) {
            int entry = TILE_ROWS * STEP_BYTES + threadIdx.x % WARP / 4 * ENTRY_BYTES;
            add_groups<TILE_ROWS>(w.words, step, (const Entry*)(low + entry), (const Entry*)(high + entry), x);
        } else {
            u32 scales[2] = {};
            int row = TILE_ROWS * STEP_BYTES + thread_entries();
            if (GROUPED) scales[0] = *(const u32*)(low + row), scales[1] = *(const u32*)(high + row);
            add_pairs<FRAGMENTS>(products, w.words, scales, fragments(x, step), 0);
        }
    }

    // The activations of this thread's columns of a step.
    __device__ __forceinline__ static const uint4* fragments(const Activations& x, int step) {
        int lane = threadIdx.x % WARP;
        return (const uint4*)(lane / 4 % 2 ? x.rows[1] : x.rows[0]) + step * FRAGMENTS * 4 + lane % 4;
    }

    template <int COUNT>
    __device__ __forceinline__ static void add_pairs(float (&to)[2][4], const u32 (&words)[2][4],
                                                     const u32 (&scales)[2], const uint4* column, int first) {
#pragma unroll
        for (int p = first; p < first + COUNT; p++) {
            u32 a[4], b[4];
            Scheme::unpack(words[0], scales[0], p, a, T());
            Scheme::unpack(words[1], scales[1], p, b, T());
            uint4 v = column[p * 4];
            mma<T>(to[0], a[0], b[0], a[1], b[1], v.x, v.y);
            mma<T>(to[1], a[2], b[2], a[3], b[3], v.z, v.w);
        }
    }

    // A row's groups are STRIDE entries apart.
    template <int STRIDE>
    __device__ __forceinline__ void add_groups(const u32 (&words)[2][4], int step, const Entry* low_table,
                                               const Entry* high_table, const Activations& x) {
        constexpr int PARTS = GROUPED ? TILE_GROUPS : 1;
        constexpr int PAIRS = FRAGMENTS / PARTS;  // of mma instructions, and sums of 32 columns, in a part
        const u32 no_scales[2] = {};
#pragma unroll
        for (int part = 0; part < PARTS; part++) {
            float own[2][4] = {};
            add_pairs<PAIRS>(own, words, no_scales, fragments(x, step), part * PAIRS);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                Entry entry = (i ? high_table : low_table)[part * STRIDE];
                float2 f = Scheme::group_of(entry);
                float sum = 0;
                if (ZERO_POINTS)
#pragma unroll
                    for (int j = 0; j < PAIRS; j++) sum += x.sums[i][(step * PARTS + part) * PAIRS + j];
                float product = own[0][3 * i] + own[1][3 * i];
                if (ZERO_POINTS) found[i] += f.x * (product + (f.y - Scheme::SUM_BIAS<T>) * sum);
                else found[i] += f.x * product;
            }
        }
    }

    // The sum over all columns that the warp has added, without the scale of a packed row.
    __device__ __forceinline__ float whole(int i) const {
        float sum = found[i];
        if constexpr (!MMA) {
            sum += __shfl_xor_sync(ALL, sum, 1);
            sum += __shfl_xor_sync(ALL, sum, 2);
        } else if (!SCALED_SUMS) {
            sum = products[0][3 * i] + products[1][3 * i];
        }
        return sum;
    }
};

__device__ __forceinline__ float row_scale(const Row& row) { return ROW_SCALES ? *(const float*)row.scales : 1; }

// A token's experts.
struct Chosen {
    static constexpr int MAX = 32;
    u64 values[MAX], scales[MAX];
    int ids[MAX];

    // The id of this thread's expert, if it has one.
    __device__ __forceinline__ static int own_id(const int* of_token, int count) {
        return threadIdx.x < count ? __ldcg(of_token + threadIdx.x) : 0;
    }
    // Threads of the block look up their own expert; the block must synchronize afterwards.
    __device__ __forceinline__ void look_up(int id, int count, const u64* all_values, const u64* all_scales) {
        int i = threadIdx.x;
        if (i >= count) return;
        ids[i] = id;
        values[i] = __ldg(all_values + id);
        scales[i] = ROW_SCALES ? __ldg(all_scales + id) : 0;
    }
};
