"""The generation loop: prompts in, tokens out."""
