"""Tools that need no server: files, searches, commands, pages; what they do is shown first."""
