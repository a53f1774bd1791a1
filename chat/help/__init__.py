"""Help pages and tables, for `swiftchat help` and `/help`."""
