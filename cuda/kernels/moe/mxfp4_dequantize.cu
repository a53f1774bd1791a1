// mxfp4_dequantize: rows of an MXFP4 matrix as floats.
//
//   blocks  u8 [rows, groups, 16]: 32 elements each (e2m1), the lower one in the low half of a byte
//   scales  u8 [rows, groups], unaligned: e8m0, 2^(byte - 127)
//   out     T [rows, groups * 32]; num_groups in all
//
// Algorithm: a thread converts eight elements.
// Launch: grid ceil(num_groups / 64), block 256, no shared memory.
// Moves num_groups * (17 + 32 * sizeof T) bytes.
// Accuracy: exact in bf16 and fp32, one rounding in fp16. Test: tests/cuda/kernels/test_mxfp4_dequantize.py
#include "common/pack.cuh"

constexpr int THREADS = 256;

extern "C" __global__ void __launch_bounds__(THREADS)
mxfp4_dequantize_kernel(const u32* blocks, const u8* scales, T* out, i64 num_groups) {
    start_dependents();
    wait_for_upstream();
    i64 word = (i64)blockIdx.x * THREADS + threadIdx.x;
    if (word >= num_groups * 4) return;
    u32 bits = blocks[word], e8m0 = scales[word / 4];
    // 2^(e8m0 - 127); the smallest is subnormal, 255 is NaN.
    float scale = __uint_as_float(e8m0 == 0 ? 0x00400000u : e8m0 == 255 ? 0x7fffffffu : e8m0 << 23), values[8];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        u32 element = bits >> (4 * i) & 15;
        // Exponent and mantissa of e2m1 are those of fp32 times 2^126.
        float value = __uint_as_float((element & 8) << 28 | (element & 7) << 22) * 0x1p126f;
        values[i] = value * scale;
    }
    Pack<T, 8> result;
    result = values;
    store(out + word * 8, result);
}
