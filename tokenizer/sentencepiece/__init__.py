"""Tokenizers from a SentencePiece `tokenizer.model`."""
