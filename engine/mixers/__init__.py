"""Token mixers with a state of fixed size for each sequence."""
