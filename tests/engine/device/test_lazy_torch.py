"""Torch without its compiler's modules: they stay unloaded until they are used."""

import subprocess
import sys
from pathlib import Path

from tests.support import tiny_models as tiny

# Generates two tokens, then uses a deferred module.
_PROGRAM = """
import sys
from pathlib import Path
from swiftchat.engine.device.lazy_torch import import_torch

import_torch()
from swiftchat.engine.api.params import EngineConfig, SamplingParams
from swiftchat.engine.generation.build import build_engine
import torch

def is_loaded():
    return type(sys.modules["torch._meta_registrations"]).__name__ != "_LazyModule"

engine = build_engine(Path(sys.argv[1]), EngineConfig(device="cpu"))
engine.add(1, [1, 2, 3], SamplingParams(temperature=0, max_tokens=2))
ids = []
while engine.has_work:
    ids += [i for _, event in engine.step() for i in getattr(event, "ids", [])]
torch.Generator().manual_seed(1)
print(len(ids), is_loaded())
torch._meta_registrations.register_meta
print(is_loaded())
"""


def test_an_engine_runs_without_them(tmp_path: Path) -> None:
    tiny.make("llama", tmp_path)
    run = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(tmp_path)], capture_output=True, text=True
    )
    assert run.stdout.split() == ["2", "False", "True"], run.stderr
