"""Encoding algorithms and the parts shared by all tokenizer formats."""
