"""What tests of the CPU kernels share."""
