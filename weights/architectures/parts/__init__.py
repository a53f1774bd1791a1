"""What architectures are made of: the entry, config fields, rotary embedding, mixers, router."""
