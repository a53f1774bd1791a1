"""Tokenizers from `tokenizer.json`, `vocab.json` with `merges.txt`, and tiktoken files."""
