"""Report what running on a GPU needs and what this machine has."""
