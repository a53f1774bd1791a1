"""Sampling and logprobs."""
