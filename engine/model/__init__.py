"""The decoder, its operations on CPU and GPU, and the KV cache."""
