"""The inputs of a step on the device: one batch, for steps of all kinds."""
