"""Architectures of model families: one file for each group of related models.

Defaults are those of the model classes in transformers.
"""
