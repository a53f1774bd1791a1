"""The CUDA kernels computed by torch on the CPU, and engines that use them."""
