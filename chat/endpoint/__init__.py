"""The OpenAI-compatible HTTP API of `swiftchat serve --openai` (extra `serve`)."""
