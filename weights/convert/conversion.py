"""What a conversion writes: the tensors of a plan in the weight files of a layout."""

import contextlib
import hashlib
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Self

from swiftchat.errors import UsageError
from swiftchat.errors.regular_file import open_regular
from swiftchat.weights.convert.journal import Journal
from swiftchat.weights.convert.layout import Layout, rank_layout, sharded_layout
from swiftchat.weights.convert.manifest import MANIFEST, encode_manifest, read_back
from swiftchat.weights.files.disk import Progress
from swiftchat.weights.files.reading import encode_json
from swiftchat.weights.formats.safetensors import (
    SafetensorsWriter,
    create_safetensors,
    header_bytes,
    spec_bytes,
)
from swiftchat.weights.formats.weight_files import SAFETENSORS_INDEX
from swiftchat.weights.sources.plan import Plan

DEFAULT_SHARD_BYTES = 5e9
SAMPLE_BYTES = 1 << 20
"""The bytes at both ends of a source file that are part of the fingerprint."""
# Interpreter, numpy, tensor tables and chunk buffers.
_BASE_BYTES = 128_000_000


@dataclass(frozen=True)
class Conversion:
    """A plan and the weight files that it is written to."""

    plan: Plan
    layout: Layout

    @classmethod
    def of(cls, plan: Plan, shard_size_bytes: float = DEFAULT_SHARD_BYTES, tp: int = 1) -> Self:
        """Choose the files: one per rank, or some of at most `shard_size_bytes`.

        Raises `UsageError` if they could not hold the model.
        """
        if tp < 1 or shard_size_bytes < 1:
            raise UsageError(
                f"{tp} ranks with files of {shard_size_bytes} bytes cannot hold a model"
            )
        layout = sharded_layout(plan, shard_size_bytes) if tp == 1 else rank_layout(plan, tp)
        return cls(plan, layout)

    @property
    def small_files(self) -> Mapping[str, bytes]:
        """The other files by name, without the manifest."""
        index = {SAFETENSORS_INDEX: self.layout.index} if self.layout.index else {}
        return {**self.plan.files, **index}

    @property
    def total_bytes(self) -> int:
        """Bytes of all tensors and small files of the plan."""
        return self.layout.tensors_bytes + sum(map(len, self.plan.files.values()))

    @property
    def num_tensors(self) -> int:
        """Tensors of all weight files."""
        return sum(map(len, self.layout.files.values()))

    @property
    def peak_bytes(self) -> int:
        """An upper bound of the memory in use, mapped files included."""
        plan = self.plan
        # Sources have at most float32, and their pages count while they are read. Column slices
        # of ranks are copied before they are written.
        largest_bytes = max(map(plan.tensor_bytes, plan.shapes))
        copies = (1 if plan.dtype == "float32" else 2) + (self.layout.tp != 1)
        # A matrix being quantized is in memory as pages, as float32 and as one byte per value.
        elements = max((math.prod(plan.shapes[name]) for name in plan.quantized), default=0)
        return max(largest_bytes * (1 + copies), 10 * elements) + _BASE_BYTES

    def file_bytes(self) -> dict[str, int]:
        """Return the bytes of each file, without the manifest."""
        files = {name: len(content) for name, content in self.small_files.items()}
        for file, tensors in self.layout.files.items():
            header = header_bytes(tensors, self._metadata(file))
            files[file] = len(header) + sum(map(spec_bytes, tensors))
        return files

    @cached_property
    def fingerprint(self) -> str:
        """A hash of source, dtype, tensors and ranks, from sizes and both ends of the files."""
        plan = self.plan
        digest = hashlib.sha256(plan.dtype.encode())
        if plan.quantization is not None:
            digest.update(plan.files["config.json"])
            if plan.quantization.is_calibrated:
                digest.update(b"calibrated")
        if self.layout.tp != 1:
            digest.update(f"tp {self.layout.tp}".encode())
        digest.update(encode_json(dict(plan.shapes)) + plan.fingerprint.encode())
        for path in plan.source_files:
            with open_regular(path) as file:
                size = os.fstat(file.fileno()).st_size
                digest.update(size.to_bytes(8, "little"))
                digest.update(file.read(SAMPLE_BYTES))
                file.seek(max(0, size - SAMPLE_BYTES))
                digest.update(file.read(SAMPLE_BYTES))
        return digest.hexdigest()

    def missing(self, written: Mapping[str, Mapping[str, int]]) -> list[str]:
        """Return the tensors of the plan that are not complete in `written`, by file and name."""

        def is_written(name: str) -> bool:
            return all(
                stored in written.get(file, {})
                for stored, _, _ in self.plan.specs(name)
                for file, _ in self.layout.slices[stored]
            )

        return [name for name in self.plan.shapes if not is_written(name)]

    def write(
        self, directory: Path, progress: Progress | None, journal: Journal | None = None
    ) -> None:
        """Write all files into `directory` and read them back.

        With a `journal`, go on where a killed process has stopped that wrote the same conversion
        there. Raises `FileSystemError` if the safetensors library finds other tensors, or a file
        reads back differently.
        """
        for name, content in self.small_files.items():
            (directory / name).parent.mkdir(exist_ok=True)
            (directory / name).write_bytes(content)
        earlier = None if journal is None else journal.checksums()
        with contextlib.ExitStack() as stack:
            # All files are open at once: each tensor is dequantized once for all ranks.
            writers = {
                file: stack.enter_context(
                    create_safetensors(
                        directory / file,
                        tensors,
                        self._metadata(file),
                        None if earlier is None else earlier.get(file, {}),
                    )
                )
                for file, tensors in self.layout.files.items()
            }
            self._write_tensors(writers, progress, journal)
        digests = read_back(directory, self.small_files, writers, progress)
        manifest = encode_manifest(directory, digests, self.fingerprint, self.layout.tp)
        (directory / MANIFEST).write_bytes(manifest)

    def _write_tensors(
        self,
        writers: Mapping[str, SafetensorsWriter],
        progress: Progress | None,
        journal: Journal | None,
    ) -> None:
        plan = self.plan
        missing = self.missing({file: writer.checksums for file, writer in writers.items()})
        total_bytes = plan.tensors_bytes
        done_bytes = total_bytes - sum(map(plan.tensor_bytes, missing))
        for source, names in plan.by_file(missing).items():
            with plan.arrival(source):
                for name in names:
                    self._write_tensor(name, writers, journal)
                    plan.release_pages()
                    done_bytes += plan.tensor_bytes(name)
                    if progress:
                        progress("converting", done_bytes, total_bytes)

    def _write_tensor(
        self, name: str, writers: Mapping[str, SafetensorsWriter], journal: Journal | None
    ) -> None:
        for stored, array in self.plan.read(name):
            for file, part in self.layout.split(stored, array):
                writers[file].write(stored, part)
                if journal:
                    journal.append(file, stored, writers[file].checksums[stored])

    def _metadata(self, file: str) -> dict[str, str]:
        return {
            "format": "pt",
            "swiftchat_source": self.fingerprint,
            **self.layout.metadata[file],
        }
