"""The part of the engine that the chat imports: parameters, messages, clients. No torch."""
