"""Slash commands, their registry and the state that they change."""
