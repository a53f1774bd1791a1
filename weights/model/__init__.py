"""A model directory and its checkpoint."""
