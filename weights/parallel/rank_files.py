"""Model directories converted for tensor parallelism: one weight file for each rank."""

import re
from pathlib import Path

from swiftchat.errors import BadModelFile, UsageError
from swiftchat.weights.formats.safetensors import read_header
from swiftchat.weights.formats.tensor_info import TensorInfo
from swiftchat.weights.parallel.tensor_parallel import Shard

_NAME = re.compile(r"model-tp(\d{1,6})-of-(\d{1,6})\.safetensors")


def rank_file_name(rank: int, size: int) -> str:
    """Return the name of the weight file of `rank` of `size`."""
    return f"model-tp{rank}-of-{size}.safetensors"


def rank_metadata(rank: int, size: int) -> dict[str, str]:
    """Return the metadata in the header of a rank's file, which detects a renamed file."""
    return {"tp_rank": str(rank), "tp_size": str(size)}


def stored_tp_size(directory: Path) -> int | None:
    """Return the number of ranks that the files of `directory` are for; None: unsharded files.

    Raises `BadModelFile` if there are files for several numbers.
    """
    names = [_NAME.fullmatch(file.name) for file in directory.glob("model-tp*.safetensors")]
    sizes = sorted({int(name[2]) for name in names if name})
    if len(sizes) > 1:
        raise BadModelFile(f"{directory} has files for --tp {sizes[0]} and for --tp {sizes[1]}")
    return sizes[0] if sizes else None


def wrong_tp_size(directory: Path, size: int, shard: Shard | None) -> UsageError:
    """Return the error that the files are for `size` ranks, unlike `shard`."""
    requested = 1 if shard is None else shard.size
    return UsageError(
        f"{directory} was converted for --tp {size}, not for --tp {requested}",
        f"use --tp {size}, or a directory converted without --tp, which works with any number",
    )


def read_rank_file(file: Path, shard: Shard) -> dict[str, TensorInfo]:
    """Return the tensors in the header of a rank's file.

    Raises `BadModelFile` if it is damaged or the file of another rank.
    """
    tensors, metadata = read_header(file)
    expected = rank_metadata(shard.rank, shard.size)
    found = {key: metadata.get(key, "nothing")[:40] for key in expected}
    if found != expected:
        raise BadModelFile(
            f"{file}: expected rank {shard.rank} of {shard.size}, "
            f"found rank {found['tp_rank']} of {found['tp_size']}"
        )
    return tensors
