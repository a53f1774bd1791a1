"""Fault 31: a torch file has tensors that are sparse, repeat one element, or are compressed.

Required: exit code 7 with the file and the reason, within 1 GiB of address space; nothing is left
under the name of the output.

Provoked by: files of `torch.save` with a sparse tensor, with a tensor of 2^40 elements and stride
0, and an archive whose zeros are compressed from a gigabyte to a megabyte.
"""

import resource
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.support import fake_engine
from tests.support.program import assert_error
from tests.support.serve_processes import SWIFTCHAT

NAME = "model.norm.weight"


def sparse(file: Path) -> None:
    torch.save({NAME: torch.ones(3, 3).to_sparse()}, file)


def repeated(file: Path) -> None:
    torch.save({NAME: torch.as_strided(torch.ones(1), (1 << 40,), (0,))}, file)


def compressed(file: Path) -> None:
    torch.save({NAME: torch.ones(4)}, file)
    with zipfile.ZipFile(file) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, content in contents.items():
            with archive.open(name, "w") as member:
                member.write(content)
                for _ in range(1024 if name.endswith("data/0") else 0):
                    member.write(bytes(1 << 20))


@pytest.mark.parametrize(
    ("write", "reason"),
    [
        (sparse, "only dense"),
        (repeated, "expected strides [1], found [0]"),
        (compressed, "compressed"),
    ],
)
def test_the_file_is_refused(tmp_path: Path, write: Callable[[Path], None], reason: str) -> None:
    folder = fake_engine.make_folder(tmp_path / "model")
    write(folder / "pytorch_model.bin")
    limit = (1 << 30, 1 << 30)
    done = subprocess.run(
        [*SWIFTCHAT, "convert", str(folder), str(tmp_path / "out")],
        capture_output=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, limit),
    )
    assert_error(done, 7, "pytorch_model.bin", reason)
    assert not (tmp_path / "out").exists()
