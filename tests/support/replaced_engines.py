"""What subcommands need of engines, the hub and other processes, replaced in a forked program.

A module of its own, because every program imports it: a test module would import pytest each time.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from swiftchat.chat.model import chat_model
from swiftchat.chat.subcommands import doctor, engines, serve
from swiftchat.chat.subcommands.bench import measure
from swiftchat.engine.api import embed, score
from swiftchat.engine.api.attach import RunningEngine
from swiftchat.engine.api.protocol import EngineStatus, Logprob
from swiftchat.weights import download
from tests.support import fake_engine

MEASURED = {
    "model": "tiny",
    "device": "cpu",
    "tp": 1,
    "pp": 1,
    "dtype": "float32",
    "threads": 2,
    "weights_bytes": 1000,
    "start_s": 1.0,
    "load_s": 0.5,
    "compile_cold_s": None,
    "compile_warm_s": None,
    "bandwidth_ceiling_bytes_per_s": None,
    "prefill": {"tokens": 9, "prefill_tps": 90.0, "tflop_per_s": None, "ttft_s": 0.1},
    "decode": [
        {
            "context": 0,
            "batch": 1,
            "step_ms": 10.0,
            "decode_tps": 100.0,
            "bytes_per_s": None,
            "fraction_of_bandwidth_ceiling": None,
        }
    ],
}
CHECKED = {
    "can_chat": True,
    "usable_gpus": [],
    "checks": [{"name": "cpu", "state": "ok", "text": "2 cores", "hint": ""}],
}
ENGINE = RunningEngine(
    Path("/run/user/1000/swiftchat/0123456789abcdef.sock"),
    EngineStatus("a-model-with-a-long-name-instruct", 123456, 10**9, 75.0, 1, "cpu"),
)


@dataclass
class Connection:
    """A connection to the engine that `stop` ends."""

    def stop(self) -> None:
        pass

    def close(self) -> None:
        pass


class Plan:
    """A download of one byte."""

    repo, license, size_bytes, missing_bytes = "owner/model", "mit", 2, 1
    folder, needed_bytes, source_bytes, starts_again = Path("/"), 1, 0, False

    def run(self, progress: Callable[[str, int, int], None]) -> Path:
        progress("downloading", 1, 2)
        return Path("/downloaded")


def replace_engines(is_filled: bool) -> None:
    """Replace what needs an engine, the hub or another process, in the forked process."""
    engine = fake_engine.FakeEngine(["An answer."])
    engine.ended.set()
    start = engine.start
    chat_model.ChatModel.__init__.__defaults__ = (start, None)  # type: ignore[attr-defined]
    changes: dict[tuple[object, str], object] = {
        (serve, "_started"): lambda path, config, _: chat_model.ChatModel(path, config, start),
        (engines, "running_engines"): lambda folder: [ENGINE] if is_filled else [],
        (engines, "connect"): lambda socket, folder: Connection(),
        (doctor, "run_checks"): lambda: CHECKED,
        (measure, "measure"): lambda *_: MEASURED,
        (score, "score"): lambda *_, **__: score.Score([Logprob(-1.0, [])]),
        (embed, "embed"): lambda *_: [[0.5, 0.25]],
        (download, "plan_download"): lambda *_, **__: Plan(),
    }
    for (module, name), value in changes.items():
        setattr(module, name, value)
