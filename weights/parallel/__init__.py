"""How tensors are sharded for tensor and pipeline parallelism."""
