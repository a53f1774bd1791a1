"""Choose the next token from logits."""
