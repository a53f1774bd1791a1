"""Find, download, verify, read and convert model files. No torch."""
