"""A report of this machine's hardware and software, and a diagnosis of problems."""
