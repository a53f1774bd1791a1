"""The CPU engine: kernels in C, the weights they read, and decode steps as one native call."""
