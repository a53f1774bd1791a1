"""Speculative decoding: tokens are proposed, and one step verifies all of them."""
