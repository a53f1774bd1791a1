// The values of KV_SCHEME: how a quantized KV cache stores keys and values.
#pragma once

#define KV_INT8 1
#define KV_FP8 2
#define KV_INT5 3

// Keys and values smaller than a byte.
#if defined(KV_SCHEME) && KV_SCHEME == KV_INT5
#define PACKED_KV
#endif
