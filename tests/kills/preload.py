"""Import the program once, before rounds are forked from this process."""

import gc
import importlib
import os
import pkgutil
import threading

# Threads would not exist in the forked processes, and the libraries would wait for them.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

_OTHERS = ("multiprocessing.connection", "filelock", "sqlite3", "prompt_toolkit.shortcuts")


def preload() -> None:
    """Import all modules of the program, and what it imports when it is used."""
    for package in ("chat", "engine", "tokenizer", "weights"):
        found = importlib.import_module(f"swiftchat.{package}")
        for module in pkgutil.walk_packages(found.__path__, f"{found.__name__}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    for name in _OTHERS:
        importlib.import_module(name)
    assert threading.active_count() == 1
    gc.collect()
    gc.freeze()  # so that the garbage collection of a forked process copies no page
