"""GGUF files: tiny, of every architecture, and invalid."""
