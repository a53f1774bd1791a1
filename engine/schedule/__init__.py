"""Schedule the tokens of each forward pass and allocate their KV-cache blocks."""
