"""Conversations: message trees, the SQLite store, search, import and export."""
