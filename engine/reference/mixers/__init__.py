"""Token mixers with a state as torch calls, one file for each kind."""
