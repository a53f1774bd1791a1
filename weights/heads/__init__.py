"""Prediction heads: small networks that propose tokens from a model's hidden states."""
