"""Attention: rotary embedding, KV cache, decode steps and prompts."""
