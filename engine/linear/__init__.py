"""Weights of linear layers: plain, quantized, merged and W8A8, on CPU and GPU."""
