"""One engine serving one or more terminals."""
