"""The device that computes: selection, driver, measured bandwidth."""
