"""Fault 8: a GGUF file is wrong about its counts, dimensions, offsets, alignment or nesting.

Required: an error that names the file, after at most 5 s of processor time and with at most 512 MB
of memory, exit code 7.

Provoked by: files that announce 2^62 elements and the like, converted under limits of processor
time and memory.
"""

import os
import resource
import subprocess
from pathlib import Path

import pytest

from tests.support.gguf.invalid import INVALID
from tests.support.program import assert_error
from tests.support.serve_processes import SWIFTCHAT
from tests.support.tiny_llama import entry_names

_MAX_BYTES, _MAX_CPU_S = 512 << 20, 5


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (_MAX_BYTES, _MAX_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (_MAX_CPU_S, _MAX_CPU_S))


# One of each kind; tests of the reader have all of them.
@pytest.mark.parametrize(
    "case",
    [
        "49 bytes of array",
        "2^62 tensors",
        "string of 2^62",
        "arrays in arrays",
        "alignment 3",
        "dimension of 2^62",
        "offset of 2^64 - 32",
        "overlap",
    ],
)
def test_a_false_header_is_refused_in_little_time_and_memory(tmp_path: Path, case: str) -> None:
    file = tmp_path / "model.gguf"
    content, _ = INVALID[case]
    file.write_bytes(content)
    done = subprocess.run(
        [*SWIFTCHAT, "convert", str(file), str(tmp_path / "out")],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        preexec_fn=_limit,
        # Each thread of numpy's BLAS would take 40 MB of the limit.
        env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    )
    assert_error(done, 7, str(file))
    assert not (tmp_path / "out").exists() and "model.gguf" in entry_names(tmp_path)
