"""`swiftchat help`: help pages and the manual page."""
