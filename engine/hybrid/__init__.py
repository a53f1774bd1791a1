"""Models that a GPU does not hold: some layers' experts are in main memory."""
