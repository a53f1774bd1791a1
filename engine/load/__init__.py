"""Bring the weights of a checkpoint to the device."""
