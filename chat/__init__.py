"""Text in, text out: the command line and the terminal."""
