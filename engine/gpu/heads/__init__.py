"""Prediction heads in CUDA kernels."""
