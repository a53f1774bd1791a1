"""The back end of GPUs: operations, weights, fused decode steps and graphs on the CUDA kernels."""
