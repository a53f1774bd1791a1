"""Keys of engines: which terminals may share one."""

import os
from pathlib import Path

import pytest

from swiftchat.engine.api.engine_key import engine_key
from swiftchat.engine.api.params import EngineConfig

CONFIG = EngineConfig()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    (folder / "inner").mkdir(parents=True)
    for name in ("config.json", "model.safetensors", "inner/template.jinja"):
        (folder / name).write_text(name)
    return folder


def test_the_same_model_and_options_have_the_same_key(folder: Path, tmp_path: Path) -> None:
    key = engine_key(folder, CONFIG, {"HOME": "/"})
    assert len(key) == 16 and key == engine_key(folder, EngineConfig(), {})
    (tmp_path / "link").symlink_to(folder)
    assert engine_key(tmp_path / "link", CONFIG, {}) == key


@pytest.mark.parametrize(
    "options", [{"ctx_size_tokens": 64}, {"device": "cpu"}, {"dtype": "float32"}, {"tp": 2}]
)
def test_other_options_have_another_key(folder: Path, options: dict[str, object]) -> None:
    other = EngineConfig(**options)  # type: ignore[arg-type]
    assert engine_key(folder, other, {}) != engine_key(folder, CONFIG, {})


@pytest.mark.parametrize("name", ["CUDA_VISIBLE_DEVICES", "SWIFTCHAT_CPU_KERNELS"])
def test_variables_of_the_engine_change_the_key(folder: Path, name: str) -> None:
    assert engine_key(folder, CONFIG, {name: "off"}) != engine_key(folder, CONFIG, {})


@pytest.mark.parametrize("name", ["model.safetensors", "inner/template.jinja"])
def test_a_replaced_file_changes_the_key(folder: Path, name: str) -> None:
    key = engine_key(folder, CONFIG, {})
    found = (folder / name).stat()
    replacement = folder / "new"
    replacement.write_text((folder / name).read_text())
    os.utime(replacement, ns=(found.st_atime_ns, found.st_mtime_ns + 1))
    replacement.rename(folder / name)
    assert engine_key(folder, CONFIG, {}) != key


def test_a_replaced_file_of_the_draft_changes_the_key(folder: Path, tmp_path: Path) -> None:
    heads = tmp_path / "heads.safetensors"
    heads.write_text("heads")
    config = EngineConfig(draft=str(heads))
    key = engine_key(folder, config, {})
    assert engine_key(folder, config, {}) == key
    heads.write_text("others")
    assert engine_key(folder, config, {}) != key
    assert engine_key(folder, EngineConfig(draft="mtp"), {}) != key


def test_a_single_file_and_a_broken_link_have_keys(folder: Path) -> None:
    (folder / "broken").symlink_to("nowhere")
    keys = {engine_key(path, CONFIG, {}) for path in (folder, folder / "config.json")}
    assert len(keys) == 2
