// The steps of a warp of packed_gate_up or expert_down, copied to shared memory in advance.
#pragma once
#include "moe/expert_matrix.cuh"

constexpr int RUN = RUN_STEPS;  // neighboring steps that a warp takes together
constexpr int SLOT_BYTES = STEP_SLOT_BYTES * RUN;

// A warp's steps of the units `first` … `end` - 1 of its block, DEPTH slots ahead.
template <int WARPS, int DEPTH, typename RowsOf> struct Stream {
    u8* slots;
    u32 slots_at;
    int steps, runs, end;
    RowsOf& rows_of;
    u64 policy = read_once();
    Row next_rows[2];
    int next_rows_unit = -1, next_unit, next_run, unit, run, slot = 0;
    bool reads;

    // rows_of(unit, rows) sets the rows of a unit.
    __device__ __forceinline__ Stream(u8* block_slots, int columns, int first, int end, RowsOf& rows_of,
                                      bool reads = true)
        : steps(steps_of(columns)), end(end), rows_of(rows_of), reads(reads) {
        int warp = threadIdx.x / WARP;
        slots = block_slots + warp * DEPTH * SLOT_BYTES;
        slots_at = shared_address(slots);
        runs = (steps + RUN - 1) / RUN;
        unit = first, run = warp;
        wrap(unit, run);
        next_unit = unit, next_run = run;
#pragma unroll 1
        for (int i = 0; i < DEPTH; i++) request(i);
    }
    __device__ __forceinline__ void wrap(int& unit, int& run) const {
        while (run >= runs) run -= runs, unit++;
    }
    __device__ __forceinline__ void request(int to) {
        if (next_unit < end) {
            if (next_unit != next_rows_unit) rows_of(next_rows_unit = next_unit, next_rows);
            u32 at = slots_at + to * SLOT_BYTES;
#pragma unroll
            for (int r = 0; r < RUN; r++)
#pragma unroll
                for (int i = 0; i < 2; i++)
                    if (r == 0 || next_run * RUN + r < steps)
                        next_rows[i].copy(at + r * STEP_SLOT_BYTES, i, next_run * RUN + r, policy, reads);
            next_run += WARPS;
            wrap(next_unit, next_run);
        }
        commit_copies();
    }
    // Whether this warp has steps of a unit; units come in order.
    __device__ __forceinline__ bool has(int of) const { return unit == of; }
    // Adds the products of this warp's steps of a unit.
    __device__ __forceinline__ void add(Sums& sums, int of, const Row (&rows)[2], const Activations& x) {
        while (has(of)) {
            wait_for_copies<DEPTH - 1>();
            if (SCALED_SUMS) __syncwarp();
            const u8* from = slots + slot * SLOT_BYTES;
#pragma unroll
            for (int r = 0; r < RUN; r++)
                if (r == 0 || run * RUN + r < steps) sums.add(from + r * STEP_SLOT_BYTES, run * RUN + r, rows, x);
            if (SCALED_SUMS) __syncwarp();
            request(slot);
            slot = slot + 1 == DEPTH ? 0 : slot + 1;
            run += WARPS;
            wrap(unit, run);
        }
    }
};
