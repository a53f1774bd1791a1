"""Conversations and the store that keeps them."""
