"""Fixtures and options of all tests, and the number of skipped GPU tests."""

import gc
import inspect
import os
import signal
import tempfile
from collections.abc import Iterator
from functools import cache
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import bytecode, model_store
from tests.support import smollm2 as smollm2_files
from tests.support.forks.install import install
from tests.support.processor_times import function_of, slow_tests

if TYPE_CHECKING:
    from swiftchat.cuda.gpu import Gpu

_LONGEST = (
    "tests/test_setup.py",
    "tests/fuzz/test_fuzz.py",
    "tests/kills/",
    "tests/test_quantized_quality.py",
    "tests/test_smollm2.py",
)
_COMPILER_CACHE = Path(__file__).parents[1] / ".test-compiler"
# One full collection for a million new objects, not for seventy thousand.
_GARBAGE_THRESHOLDS = (10_000, 10, 10)
_left_out = pytest.StashKey[list[str]]()

# Divide the cores among the processes of `-n` and their children. Set before importing torch, which
# reads the variable once.
if "PYTEST_XDIST_WORKER_COUNT" in os.environ:
    num_workers = int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    cores_per_worker = max(1, (os.cpu_count() or 1) // num_workers)
    os.environ.setdefault("OMP_NUM_THREADS", str(cores_per_worker))

# A background job of a shell ignores SIGINT, and one of nohup SIGHUP; the programs that tests start
# and interrupt would inherit that, but not a handler.
signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)

bytecode.keep()
install()

import hypothesis  # noqa: E402  (its modules are kept too)

# Examples may take long on a busy machine.
hypothesis.settings.register_profile("any speed", deadline=None)
hypothesis.settings.load_profile("any speed")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--require-gpu", action="store_true", help="fail if GPU tests cannot run")
    parser.addoption("--no-model", action="store_true", help="skip tests of the real model")


@cache
def _num_gpus() -> int:
    import torch

    return torch.cuda.device_count()


def _num_required_gpus(item: pytest.Item) -> int:
    marker = item.get_closest_marker("gpus")
    if marker:
        return int(marker.args[0])
    return 1 if item.get_closest_marker("gpu") else 0


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(
    collector: pytest.Module | pytest.Class, name: str, obj: object
) -> list[pytest.Item] | None:
    """Collect a function that needs more GPUs than there are without its thousands of cases."""
    if not inspect.isfunction(obj) or not name.startswith("test"):
        return None
    marks = [*getattr(obj, "pytestmark", []), *collector.iter_markers()]
    if not any(mark.name in ("gpu", "gpus") for mark in marks):
        return None
    function = pytest.Function.from_parent(collector, name=name)
    return [function] if _num_required_gpus(function) > _num_gpus() else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    required = {item: number for item in items if (number := _num_required_gpus(item))}
    found = _num_gpus() if required else 0
    unmet = [item for item, number in required.items() if number > found]
    if unmet and config.getoption("--require-gpu"):
        raise pytest.UsageError(f"torch finds {found} GPUs, too few for {len(unmet)} tests")
    for item in unmet:
        reason = f"{required[item]} GPUs needed, {found} found" if found else "no GPU"
        item.add_marker(pytest.mark.skip(reason=reason))
    if len(unmet) < len(items):
        # Hundreds of skipped tests take longer than to leave them out.
        _leave_out(config, unmet, items)
    slow = slow_tests()
    for item in items:
        if function_of(item.nodeid) in slow:
            item.add_marker(pytest.mark.slow)
    # The longest tests begin first, so that no process waits for another at the end.
    items.sort(key=lambda item: not item.nodeid.startswith(_LONGEST))
    model_tests = [item for item in items if {"smollm2", "smollm2_gguf"} & set(item.fixturenames)]
    for item in model_tests:
        item.add_marker(pytest.mark.model)
        if config.getoption("--no-model"):
            item.add_marker(pytest.mark.skip(reason="--no-model"))


def _leave_out(config: pytest.Config, unmet: list[pytest.Item], items: list[pytest.Item]) -> None:
    config.hook.pytest_deselected(items=unmet)
    left_out = set(unmet)
    items[:] = [item for item in items if item not in left_out]
    config.stash[_left_out] = [item.nodeid for item in unmet]
    if hasattr(config, "workeroutput"):
        config.workeroutput["left_out"] = config.stash[_left_out]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Start two processes a core: many tests wait for other programs."""
    return 2 * (os.cpu_count() or 1)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take the names from a process of `-n`, which all collect the same tests."""
    node.config.stash[_left_out] = getattr(node, "workeroutput", {}).get("left_out", [])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Give each process neighboring tests, which share fixtures; who is done takes from others."""
    if config.getoption("dist") != "load":
        return None
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[object]:
    """Collect no garbage meanwhile, a fifth of the time; nor later in what exists at the end.

    To collect it once, at the end, takes 0.7 s in each process, and frees 10 MB. Afterwards less
    often than usual: a collection among the modules of transformers takes 0.1 s.
    """
    gc.disable()
    result = yield
    gc.freeze()
    gc.set_threshold(*_GARBAGE_THRESHOLDS)
    gc.enable()
    return result


def pytest_collection_finish(session: pytest.Session) -> None:
    """Compile the CPU kernels that the engine loads, unless only they are tested.

    Their own tests compile the variants that they load.
    """
    own_tests = Path(__file__).parent / "engine" / "cpu"
    if session.config.getoption("collectonly"):
        return
    if any(own_tests not in item.path.parents for item in session.items):
        from tests.support.native.libraries import compile_kernels

        compile_kernels()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = ("no GPU", "GPUs needed")
    names = [r.nodeid for r in skipped if any(reason in str(r.longrepr) for reason in reasons)]
    names += terminalreporter.config.stash.get(_left_out, [])
    functions = {function_of(name) for name in names}
    files = {name.partition("::")[0] for name in names}
    terminalreporter.write_line(
        f"GPU tests that did not run: {len(functions)} functions in {len(files)} files"
    )
    num_shells = sum("is not installed" in str(report.longrepr) for report in skipped)
    if num_shells:
        terminalreporter.write_line(
            f"Shells whose completion was not tested: {num_shells} (install bash, zsh and fish)"
        )


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """The GGUF file of SmolLM2."""
    return smollm2_files.gguf_file()


@pytest.fixture(scope="session")
def smollm2(smollm2_gguf: Path) -> Path:
    """SmolLM2 converted to a bf16 model directory."""
    return smollm2_files.converted(smollm2_gguf, "bfloat16")


@pytest.fixture(scope="session")
def smollm2_f32(smollm2_gguf: Path) -> Path:
    """SmolLM2 converted to an fp32 model directory."""
    return smollm2_files.converted(smollm2_gguf, "float32")


@pytest.fixture(scope="session")
def gpu() -> "Gpu":
    """The first GPU, with kernels compiled in this session."""
    import torch

    from swiftchat.cuda.cubin_cache import CubinCache
    from swiftchat.cuda.gpu import Gpu

    return Gpu(torch.device("cuda", 0), CubinCache(None))


@pytest.fixture(autouse=True, scope="session")
def _shared_folders(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Make tiny models once for all processes, and the C compiler's own libraries for all runs."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    os.environ.setdefault("ZIG_GLOBAL_CACHE_DIR", str(_COMPILER_CACHE))
    model_store.session_folder = folder / "tiny-models"


@pytest.fixture(scope="session")
def _runtime_folders() -> Iterator[Iterator[Path]]:
    """Yield empty folders for sockets, the same one as long as no test leaves anything there.

    To remove a folder may take milliseconds of waiting, far more than to make one.
    """

    def folders(parent: Path) -> Iterator[Path]:
        for number in count():
            folder = parent / str(number)
            folder.mkdir(mode=0o700)
            while next(folder.iterdir(), None) is None:
                yield folder

    # Not in the tests' folder: the path of a Unix socket may have 104 characters.
    with tempfile.TemporaryDirectory(prefix="run-", ignore_cleanup_errors=True) as parent:
        yield folders(Path(parent))


@pytest.fixture(autouse=True)
def _user_folders(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    _runtime_folders: Iterator[Path],
) -> None:
    """Redirect the user's folders to `tmp_path`, or to the runtime folder if a test has none.

    Thousands of tests write nothing, for which a folder of their own would be made and removed.
    """
    folder = runtime = next(_runtime_folders)
    if "tmp_path" in request.fixturenames:
        folder = request.getfixturevalue("tmp_path")
    for name in ("DATA", "CONFIG", "CACHE", "STATE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(folder / "xdg" / name.lower()))
    monkeypatch.setenv("HF_HOME", str(folder / "hub-home"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
