"""Embedding, norms and activations."""
