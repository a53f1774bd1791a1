"""Files with options: the configuration file, project files, roles."""

import contextlib
import random
from pathlib import Path
from typing import Any

from tests.fuzz.formats import program
from tests.fuzz.mutations import mutate_text
from tests.fuzz.target import Target

_WORDS = (
    "model",
    "template",
    "temperature",
    "top_k",
    "stop",
    "seed",
    "system",
    "role",
    "variables",
    "[",
    "]",
    "{",
    "}",
    "---\n",
    "\n",
    " = ",
    ": ",
    "inf",
    "nan",
    "-inf",
    "true",
    "null",
    "1979-05-27T07:32:00Z",
    "2001-12-14",
    "!!python/object:os.system",
    "!!binary",
    "&a ",
    "*a",
    "<<: ",
    '"""',
    "'",
    "\\u0000",
    "[[table]]",
    "? ",
    "0x7fffffffffffffffffff",
    "1_000",
    "~",
    "{{name}}",
)
_CONFIG = b"""model = "someone/tiny"
temperature = 0.5
top-k = 40
num_ctx = 4096
stop = ["</end>", "x"]
logit_bias = ["a=1"]
theme = "dark"
colors = "code=blue"
swap_size = "1GiB"
tp = "auto"
quiet = true
mcp = ["some command"]
template = "chatml"
"""
_PROJECT = b"""model = "tiny"
role = "r"
temperature = 0.5
top_k = 40
stop = ["</end>"]
seed = 3
"""
_ROLE = b"""---
model: someone/tiny
temperature: 0.5
top_k: 40
stop: [a, b]
prompt: "Translate to {{lang}}: "
variables:
  lang: 3.10
  tone: kind
---
You are a translator with a {{ tone }} tone, \\{{kept}}.
"""
_PLAIN_ROLE = b"---\ntop_p: 0.5\nsystem: Answer briefly.\nseed: 12\noverflow: sliding\n---\n"


def _mutate(chance: random.Random, data: bytes) -> bytes:
    return mutate_text(chance, data, _WORDS)


def _show() -> None:
    program.run("config")


def _load_configuration(data: bytes, folder: Path) -> Any:
    (program.settings_folder(folder) / "config.toml").write_bytes(data)
    program.use_folder(folder)
    _show()
    program.ask()


def _load_project(data: bytes, folder: Path) -> Any:
    roles = program.settings_folder(folder) / "roles"
    roles.mkdir()
    (roles / "r.md").write_text("Answer briefly.")
    (folder / ".swiftchat.toml").write_bytes(data)
    program.use_folder(folder)
    _show()
    program.ask()


def _load_role(data: bytes, folder: Path) -> Any:
    roles = program.settings_folder(folder) / "roles"
    roles.mkdir()
    (roles / "r.md").write_bytes(data)
    program.use_folder(folder)
    with contextlib.suppress(*program.REFUSALS):
        program.run("--role", "r", "config")
    with contextlib.suppress(*program.REFUSALS):
        program.ask("--role", "r", "-v", "tone=harsh")
    program.ask("--role", "r")


def _target(name: str, seeds: list[bytes], load: Any, cases: int) -> Target:
    refusals = program.REFUSALS
    return Target(name, lambda: seeds, _mutate, load, cases, refusals=refusals, byte_share=0.25)


SETTINGS = (
    _target("configuration", [_CONFIG], _load_configuration, 500),
    _target("project-file", [_PROJECT], _load_project, 150),
    _target("role", [_ROLE, _PLAIN_ROLE], _load_role, 100),
)
