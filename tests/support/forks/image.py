"""Modules that are imported once, before programs are forked from this process.

The program of the terminal must not import torch. So torch, and what imports it, is imported
and hidden: a forked process sees it when it imports it. A fork without it takes half the time.
"""

import gc
import importlib
import os
import pkgutil
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from tests.support.forks.start import WORKER_VARIABLES

# Libraries that the program imports when it needs them; those that are missing are left out.
_TERMINAL = (
    "multiprocessing.connection",
    "filelock",
    "sqlite3",
    "prompt_toolkit.shortcuts",
    "pygments.lexers.python",
    "pygments.formatters.terminal256",
)
_TOOLS = ("mcp", "mcp.client.stdio", "anyio._backends._asyncio", "anyio.from_thread")
# These copy variables of the environment to constants, which would be those of the tests' process.
_NOT_IMPORTED = ("huggingface_hub", "transformers")
# Read for a console that only measures text, and for folders that are not used.
_WITHOUT_EFFECT = frozenset(
    {"COLUMNS", "LINES", "TERM", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"}
    | {"HOME", "PATH", "PYTHONUSERBASE"}
)
_NUM_THREADS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class HiddenModules(MetaPathFinder, Loader):
    """Imported modules that all appear when one of them is imported."""

    def __init__(self) -> None:
        self._modules: dict[str, ModuleType] = {}
        self._spec: ModuleSpec | None = None

    @contextmanager
    def hide(self, *packages: str) -> Iterator[None]:
        """Hide the modules of these packages that are imported within the context."""
        before = set(sys.modules)
        yield
        for name in sys.modules.keys() - before:
            if f"{name}.".startswith(tuple(f"{package}." for package in packages)):
                self._modules[name] = sys.modules.pop(name)

    def forget(self, name: str) -> None:
        """Let a module be imported anew: it is to run as `__main__`."""
        self._modules.pop(name, None)
        sys.modules.pop(name, None)

    def forget_package(self, package: str) -> None:
        """Let all modules of a package be imported anew."""
        for name in {*self._modules, *sys.modules}:
            if f"{name}.".startswith(f"{package}."):
                self.forget(name)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._modules:
            return None
        spec = self._spec = self._modules[fullname].__spec__
        assert spec is not None
        is_package = spec.submodule_search_locations is not None
        return ModuleSpec(fullname, self, origin=spec.origin, is_package=is_package)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = self._modules[spec.name]
        sys.modules.update(self._modules)
        self._modules.clear()
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Keep what the module was when it was executed."""
        module.__spec__ = self._spec


def load_terminal() -> frozenset[str]:
    """Import what the programs of the terminal import when they are used.

    Return the names of the environment variables that modules have read.
    """
    with _loading() as names:
        _import_program("chat", "errors", "tokenizer", "weights", "engine.api")
        for name in _TERMINAL:
            importlib.import_module(name)
        for name in _TOOLS:
            _import_if_installed(name)
    return frozenset(names)


def load_engine() -> tuple[HiddenModules, frozenset[str]]:
    """Import torch and the engine, after `load_terminal`.

    Return the hidden modules and the names of the environment variables that modules have read.
    """
    hidden = HiddenModules()
    with _loading() as names, hidden.hide("torch", "swiftchat.engine", "swiftchat.cuda"):
        importlib.import_module("swiftchat.engine.device.lazy_torch").import_torch()
        _import_program("engine")
    sys.meta_path.insert(0, hidden)
    return hidden, frozenset(names)


@contextmanager
def _loading() -> Iterator[set[str]]:
    """Yield a set that then has the names of the environment variables that were read meanwhile."""
    # Threads would not exist in the forked processes, and the libraries would wait for them.
    wanted = WORKER_VARIABLES | dict.fromkeys(_NUM_THREADS, "1")
    added = {name: value for name, value in wanted.items() if name not in os.environ}
    os.environ.update(added)
    gc.disable()  # all that is made here stays
    with _recorded_variables() as names:
        yield names
    names -= _WITHOUT_EFFECT | added.keys()
    for name in added:
        del os.environ[name]
    assert not [name for name in _NOT_IMPORTED if name in sys.modules]
    assert "torch" not in sys.modules, "a module of the terminal imports torch"
    assert threading.active_count() == len(list(Path("/proc/self/task").iterdir())) == 1
    gc.collect()
    gc.freeze()  # so that the garbage collection of a forked process copies no page
    gc.enable()


def _import_program(*packages: str) -> None:
    for package in packages:
        found = importlib.import_module(f"swiftchat.{package}")
        for module in pkgutil.walk_packages(found.__path__, f"{found.__name__}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)


def _import_if_installed(name: str) -> None:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        return


@contextmanager
def _recorded_variables() -> Iterator[set[str]]:
    """Yield a set that gets the name of every environment variable that is read meanwhile."""
    names: set[str] = set()
    kind = type(os.environ)
    read = kind.__getitem__

    def record(environ: "os._Environ[str]", name: str) -> str:
        if sys._getframe(1).f_code.co_name != "__iter__":  # not all variables, one after another
            names.add(name)
        return read(environ, name)

    kind.__getitem__ = record  # type: ignore[method-assign]
    try:
        yield names
    finally:
        kind.__getitem__ = read  # type: ignore[method-assign]
