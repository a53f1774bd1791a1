"""Chat templates: render a conversation in a sandbox."""
