"""Which rank of how many this process is, as torchrun or SLURM says."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from swiftchat.errors import UsageError


@dataclass(frozen=True)
class Launch:
    """Rank `rank` of `size`, and `local_rank` of its host's.

    They meet at `host` and `port`, where torchrun has a store of its own (`has_store`) or rank 0 is
    to have one; `attempt` counts how often torchrun has started them anew.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    host: str = "127.0.0.1"
    port: int = 0
    has_store: bool = False
    attempt: int = 0

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Self:
        """torchrun's variables, SLURM's where those are missing, or a rank that is alone.

        Raises `UsageError` for values that are missing or make no sense.
        """
        if "RANK" in environ:
            names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
        elif "SLURM_PROCID" in environ and "MASTER_ADDR" in environ:
            names = ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID")
        else:
            return cls()
        rank, size, local_rank = (_number(environ, name) for name in names)
        if not 0 <= rank < size:
            raise UsageError(f"{names[0]} is {rank} and {names[1]} is {size}")
        if size == 1:
            return cls()
        host = environ.get("MASTER_ADDR", "")
        if not host:
            raise UsageError("MASTER_ADDR is missing", "set it to the name of rank 0's host")
        has_store = environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        attempt = environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        return cls(
            rank,
            size,
            local_rank,
            host,
            _number(environ, "MASTER_PORT"),
            has_store,
            int(attempt) if attempt.isdecimal() else 0,
        )

    @property
    def name(self) -> str:
        return f"rank {self.rank} on {os.uname().nodename}"


def _number(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name, "")
    if not text.isdecimal():
        raise UsageError(
            f"{name} is {text!r} and should be a number",
            "torchrun sets it; for srun see docs/several-gpus.md",
        )
    return int(text)
