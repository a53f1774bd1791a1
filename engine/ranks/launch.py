"""The rank number and rendezvous address of a process started by torchrun or SLURM."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from swiftchat.errors import UsageError


@dataclass(frozen=True)
class Launch:
    """Rank `rank` of `size`; `local_rank` counts the ranks of one host.

    The rendezvous is at `host` and `port`: a store of torchrun's (`has_store`), or else one that
    rank 0 creates. `attempt` counts the restarts by torchrun.
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
        """Read torchrun's variables, else SLURM's; without either, the process is a single rank.

        Raises `UsageError` for missing or invalid values.
        """
        if "RANK" in environ:
            names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
        elif "SLURM_PROCID" in environ and "MASTER_ADDR" in environ:
            names = ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID")
        else:
            return cls()
        rank, size, local_rank = (_number(environ, name) for name in names)
        if not 0 <= rank < size:
            raise UsageError(
                f"{names[0]} is {rank}, but must be from 0 to {size - 1} ({names[1]} − 1)",
                "torchrun sets both variables; for srun see docs/several-gpus.md",
            )
        if size == 1:
            return cls()
        host = environ.get("MASTER_ADDR", "")
        if not host:
            raise UsageError("MASTER_ADDR is missing", "set it to the name of rank 0's host")
        attempt = environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        return cls(
            rank,
            size,
            local_rank,
            host,
            _number(environ, "MASTER_PORT"),
            has_store=environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
            attempt=int(attempt) if attempt.isdecimal() else 0,
        )

    @property
    def name(self) -> str:
        """The rank's name in messages."""
        return f"rank {self.rank} on {os.uname().nodename}"


def _number(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name, "")
    if not text.isdecimal():
        raise UsageError(
            f"{name} is {text!r} and must be a number",
            "torchrun sets it; for srun see docs/several-gpus.md",
        )
    return int(text)
