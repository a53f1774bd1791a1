"""The tiers below the prefix cache of the device: KV blocks in host memory and on disk."""
