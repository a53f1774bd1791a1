"""Read LoRA adapters and soft prompts, and merge adapters into a model."""
