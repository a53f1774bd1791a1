"""The journal of a conversion that can go on after it was killed."""

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Journal:
    """A file with a line for each tensor that was written: weight file, name, CRC-32.

    A line is appended after its tensor, so that a killed process loses one tensor at most. What
    a crash of the system has left of either is found by comparing the checksums.
    """

    path: Path

    def checksums(self) -> Mapping[str, Mapping[str, int]]:
        """Return the CRC-32 of the written tensors by weight file and name."""
        found: dict[str, dict[str, int]] = {}
        with contextlib.suppress(FileNotFoundError):
            for line in self.path.read_bytes().splitlines():
                with contextlib.suppress(ValueError, TypeError):  # the end of a line is missing
                    file, name, checksum = json.loads(line)
                    found.setdefault(file, {})[name] = checksum
        return found

    def append(self, file: str, name: str, checksum: int) -> None:
        """Add a tensor; the line break comes first and ends a line that was cut."""
        with self.path.open("ab", buffering=0) as journal:
            journal.write(f"\n{json.dumps([file, name, checksum])}".encode())
