"""Constrained decoding: only tokens that a grammar allows are sampled."""
