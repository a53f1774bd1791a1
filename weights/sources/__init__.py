"""Model sources that `convert` reads, each turned into a conversion plan."""
