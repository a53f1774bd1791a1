"""The kernels as checked functions: one file an operation, named like its `.cu`."""
