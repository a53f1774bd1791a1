"""Decode steps by fused kernels."""
