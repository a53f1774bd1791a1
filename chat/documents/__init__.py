"""PDF and office documents as Markdown, read by a process of its own."""
