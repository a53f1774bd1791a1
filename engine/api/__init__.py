"""The interface of the engine for the chat: parameters, messages, clients. Imports no torch."""
