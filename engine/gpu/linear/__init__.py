"""Weights of linear layers on a GPU."""
