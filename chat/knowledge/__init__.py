"""A folder as knowledge: an index of its texts, and the passages that may answer a question."""
