"""Model architectures as data: config fields, tensor names, defaults."""
