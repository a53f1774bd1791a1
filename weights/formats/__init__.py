"""File formats that hold tensors, read with bounds checks."""
