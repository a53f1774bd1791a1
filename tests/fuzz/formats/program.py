"""The command line in this process, with all folders of the user below one folder."""

import contextlib
import os
import sys
from pathlib import Path

import click

from swiftchat.chat import cli
from swiftchat.errors import ModelNotFound, SwiftchatError

# What the program prints as an error or ends with.
REFUSALS = (SwiftchatError, click.ClickException, click.exceptions.Exit, click.exceptions.Abort)


def use_folder(folder: Path) -> None:
    """Make `folder` the place of the user's files, and the working folder."""
    for name in ("DATA", "CONFIG", "CACHE", "STATE", "RUNTIME"):
        kind = "DIR" if name == "RUNTIME" else "HOME"
        os.environ[f"XDG_{name}_{kind}"] = str(folder / name.lower())
    os.environ["HF_HOME"] = str(folder / "hub")
    os.chdir(folder)


def settings_folder(folder: Path) -> Path:
    """Create and return the folder of the configuration file."""
    path = folder / "config" / "swiftchat"
    path.mkdir(parents=True)
    return path


def data_folder(folder: Path) -> Path:
    """Create and return the folder of the saved conversations."""
    path = folder / "data" / "swiftchat" / "sessions"
    path.mkdir(parents=True)
    return path


def ask(*arguments: str) -> None:
    """Ask a model; it is not installed, which is found out when all options are checked."""
    with contextlib.suppress(ModelNotFound):
        run("--offline", *arguments, "-p", "hello")


def run(*arguments: str) -> None:
    """Run a command; raises one of `REFUSALS` where the program prints an error."""
    sys.argv = ["swiftchat", *arguments]
    cli._run()
