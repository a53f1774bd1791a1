"""Files and folders on disk: JSON, locks, free space, atomic directories."""
