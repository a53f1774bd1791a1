"""Directories whose weights are cut for a number of ranks already: one file for each rank."""

import re
from pathlib import Path

from swiftchat.errors import BadModelFile, UsageError
from swiftchat.weights.formats.safetensors import read_header
from swiftchat.weights.formats.tensor_info import TensorInfo
from swiftchat.weights.parallel.tensor_parallel import Shard

__all__ = ["rank_file_name", "rank_metadata", "read_rank_file", "stored_tp_size", "wrong_tp_size"]

_NAME = re.compile(r"model-tp(\d{1,6})-of-(\d{1,6})\.safetensors")


def rank_file_name(rank: int, size: int) -> str:
    """The name of the file with what `rank` of `size` needs."""
    return f"model-tp{rank}-of-{size}.safetensors"


def rank_metadata(rank: int, size: int) -> dict[str, str]:
    """What the header of that file says, so that a renamed one is found out."""
    return {"tp_rank": str(rank), "tp_size": str(size)}


def stored_tp_size(directory: Path) -> int | None:
    """The number of ranks that the files of `directory` are cut for; None: they are whole.

    Raises `BadModelFile` when they are cut for several numbers.
    """
    names = [_NAME.fullmatch(file.name) for file in directory.glob("model-tp*.safetensors")]
    sizes = sorted({int(name[2]) for name in names if name})
    if len(sizes) > 1:
        raise BadModelFile(f"{directory}: files for --tp {sizes[0]} and for --tp {sizes[1]}")
    return sizes[0] if sizes else None


def wrong_tp_size(directory: Path, size: int, share: Shard | None) -> UsageError:
    """The error that files are cut for `size` ranks, and not as `share` wants them."""
    wanted = 1 if share is None else share.size
    return UsageError(
        f"{directory} is sliced for --tp {size}, not for --tp {wanted}",
        f"use --tp {size}, or a directory converted without --tp: it serves any number",
    )


def read_rank_file(file: Path, share: Shard) -> dict[str, TensorInfo]:
    """The tensors of a rank's file, from its header.

    Raises `BadModelFile` when it is damaged or another rank's.
    """
    tensors, metadata = read_header(file)
    expected = rank_metadata(share.rank, share.size)
    found = {key: metadata.get(key, "nothing")[:40] for key in expected}
    if found != expected:
        raise BadModelFile(
            f"{file}: expected rank {share.rank} of {share.size}, "
            f"found rank {found['tp_rank']} of {found['tp_size']}"
        )
    return tensors
