"""Token mixers with a state."""
