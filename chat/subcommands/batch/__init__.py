"""`swiftchat batch`: answer the prompts of a file."""
