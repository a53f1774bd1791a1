"""Architectures of model families: one file for each group of related models."""
