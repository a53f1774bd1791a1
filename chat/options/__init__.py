"""Command-line options, configuration file and roles."""
