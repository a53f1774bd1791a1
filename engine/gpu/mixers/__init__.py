"""Token mixers with a state in CUDA kernels, one file for each kind."""
