"""What tests of the CUDA kernels share."""
