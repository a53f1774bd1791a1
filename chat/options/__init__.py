"""Command-line options, their completion, the configuration file and roles."""
