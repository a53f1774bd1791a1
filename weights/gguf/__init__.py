"""GGUF metadata, tensors and tokenizers as their Hugging Face equivalents."""
