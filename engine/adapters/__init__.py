"""Adapters and soft prompts: loaded beside the base model, chosen by each sequence."""
