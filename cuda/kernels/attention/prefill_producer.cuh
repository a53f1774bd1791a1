// The warp that finds the tiles of queries of a block and copies queries, keys and values for its consumers.
// prefill_wgmma.cuh includes it.
#pragma once

// The place of a box that the copy engine fills with zeros: before the first row.
constexpr int NO_ROW = -2 * KEYS;

struct Producer {
    const Arguments& a;
    const TensorMap &cache_map, &q_map;
    Ring& ring;
    u8 *queries, *tiles;
    Cursor<STAGES> stage;
    Cursor<Q_SLOTS> slot;
    u32 unmasked_parity = 0;

    __device__ __forceinline__ int lane() const { return threadIdx.x; }
    __device__ __forceinline__ int box_rows() const { return min(1 << a.log2_block_size, KEYS); }

    // The tile of this block in a round, in turns from the first and from the last block: early tiles have the
    // most keys.
    __device__ __forceinline__ int index(int round) const {
        return round * gridDim.x + (round % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
    }

    // The first cache row of this lane's box of the keys from `key` on. A box is a block of the cache, or a part.
    __device__ __forceinline__ int box_row(const QueryTile& w, int key, int begin) const {
        int at = key + lane() * box_rows();
        if (at >= key + KEYS || at + box_rows() <= begin || at >= w.context) return NO_ROW;
        int kv_head = w.head / (a.num_heads / a.num_kv_heads), size = 1 << a.log2_block_size;
        return w.table[at >> a.log2_block_size] * w.block_rows + kv_head * size + (at & (size - 1));
    }

    // Copies the boxes of a tile of keys or values.
    __device__ __forceinline__ void copy(u8* to, int row, u64* barrier) const {
        if (lane() == 0) barrier_expect(barrier, TILE_BYTES);
        __syncwarp();
        if (lane() * box_rows() < KEYS) {
#pragma unroll
            for (int panel = 0; panel < PANELS; panel++)
                copy_box(to + (panel * KEYS + lane() * box_rows()) * 128, cache_map, panel * 64, row, barrier);
        }
    }

    // Copies values of which only rows first … last - 1 are visible, and sets the others to zero: they may be
    // NaN, which a weight of zero does not hide.
    __device__ __forceinline__ void copy_visible(u8* to, int row, int first, int last, u64* barrier) {
        copy(to, row, &ring.unmasked);
        barrier_wait(&ring.unmasked, unmasked_parity);
        unmasked_parity ^= 1;
        for (int e = lane(); e < PANELS * KEYS * 8; e += WARP) {
            int at = e / 8 % KEYS;
            if (at < first || at >= last) *(uint4*)(to + e * 16) = {0, 0, 0, 0};
        }
        copy_engine_fence();
        __syncwarp();
        if (lane() == 0) barrier_arrive(barrier);
    }

    __device__ __forceinline__ void copy_keys(const QueryTile& w) {
        KeyRange range(a, w);
        int values = a.num_kv_heads << a.log2_block_size, next = box_row(w, range.first, range.begin);
        for (int key = range.first; key < range.end; key += KEYS) {
            int row = next;
            if (key + KEYS < range.end) next = box_row(w, key + KEYS, range.begin);
            u8* to = tiles + stage.at * TILE_BYTES;
            barrier_wait(&ring.empty[KEY][stage.at], stage.parity ^ 1);
            copy(to, row, &ring.full[KEY][stage.at]);
            to += STAGES * TILE_BYTES;
            if (row != NO_ROW) row += values;
            barrier_wait(&ring.empty[VALUE][stage.at], stage.parity ^ 1);
            u64* full = &ring.full[VALUE][stage.at];
            if (key >= range.begin && key + KEYS <= w.context)
                copy(to, row, full);
            else
                copy_visible(to, row, range.begin - key, w.context - key, full);
            stage.advance();
        }
    }

    // Makes a tile's description visible to the consumers, with its queries.
    __device__ __forceinline__ void publish(const QueryTile& w) const {
        u64* full = &ring.q_full[slot.at];
#if SPLIT  // consumers load them: a tile has rows of several heads
        if (lane() == 0) barrier_arrive(full);
#else
        if (lane() == 0) {
            barrier_expect(full, QUERY_BYTES);
            u8* to = queries + slot.at * QUERY_BYTES;
            for (int group = 0; group < CONSUMERS; group++)
                for (int panel = 0; panel < PANELS; panel++, to += GROUP_ROWS * 128)
                    copy_box(to, q_map, panel * 64, w.head, w.first_token + group * GROUP_ROWS, full);
        }
#endif
    }

    __device__ __forceinline__ void run() {
        int num_indices = a.num_tiles * a.num_heads, info = 0;
#if SPLIT
        num_indices = gridDim.x;
#endif
        for (int round = 0; index(round) < num_indices; round++) {
            barrier_wait(&ring.q_empty[slot.at], slot.parity ^ 1);
            QueryTile& w = ring.tiles[info];
            if (!find_tile<ROWS>(a, index(round), w, lane() == 0)) continue;
            __syncwarp();
            publish(w);
            slot.advance();
            copy_keys(w);
            info = (info + 1) % NUM_INFOS;
        }
        barrier_wait(&ring.q_empty[slot.at], slot.parity ^ 1);
        if (lane() == 0) {
            ring.tiles[info].num_rows = 0;
            barrier_arrive(&ring.q_full[slot.at]);
        }
    }
};
