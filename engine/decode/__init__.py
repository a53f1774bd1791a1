"""Decode steps on a GPU: captured graphs, async decode, pipeline decode."""
