"""A model ready to answer: template, tokenizer and engine."""
