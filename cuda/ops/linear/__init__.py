"""Matmuls with plain and packed weights."""
