"""Downloads and conversions that are killed, and repeated by the next run."""

import hashlib
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

from swiftchat.weights.convert.manifest import MANIFEST
from swiftchat.weights.model.directory import Model
from tests.kills.outcome import Outcome
from tests.kills.processes import (
    changed_settings,
    files_in,
    folders,
    fork_in_terminal,
    orphans,
    send,
)
from tests.support import fake_hub
from tests.support.arriving_models import content_of, converted, repository_files
from tests.support.fake_hub import FakeHub, Fault
from tests.support.terminal import EMULATED, Terminal
from tests.support.zero_model import make_zero_model

_LIMIT_S = 120.0
_MAX_STOPPED_S = 0.1
_DOWNLOADED = ("config.json", "tokenizer.json", "model.safetensors")
_NUM_REQUESTS = 9  # about as many as a download makes
_NUM_ARRIVAL_REQUESTS = 28
_CHUNK_BYTES = 1 << 18  # so much arrives before the connection is closed
_AFTER_REQUEST_S = 0.05


class Run:
    """A command of the program in a terminal."""

    def __init__(self, main: Callable[[], object], arguments: Sequence[str], home: Path) -> None:
        environment = folders(home) | EMULATED | {"NO_PROXY": "127.0.0.1"}
        self.pid, descriptor = fork_in_terminal(main, arguments, environment)
        self.terminal = Terminal.of(descriptor)
        self._exit_code: int | None = None

    def look_until(self, condition: Callable[[], object]) -> None:
        """Read what the command writes until `condition` holds or the command ends."""
        deadline = time.monotonic() + _LIMIT_S
        while not condition() and self.exit_code is None:
            self.terminal.read()
            if time.monotonic() > deadline:
                os.kill(self.pid, signal.SIGKILL)
                raise TimeoutError(f"the command did not end:\n{self.terminal.look()}")

    def end_by(self, name: str, random: Random, outcome: Outcome) -> None:
        """Send the signal; continue or kill a stopped command; record how the command ends."""
        send(self.pid, signal.Signals[name])
        if name == "SIGSTOP":
            time.sleep(random.uniform(0, _MAX_STOPPED_S))
            send(self.pid, random.choice((signal.SIGCONT, signal.SIGKILL)))
        outcome.exit_code = code = self.wait()
        if code != -signal.SIGKILL:
            outcome.broken = changed_settings(self.terminal.process.child_fd, self.terminal.raw)
        number = signal.Signals[name]
        expected = {"SIGKILL": {-number, 0}, "SIGSTOP": {0, -signal.SIGKILL}}
        if code not in expected.get(name, {0, -number, 128 + number}):
            outcome.failures.append(f"exit code {code}:\n{self.terminal.look()}")

    def wait(self) -> int:
        """Wait for the end of the command; return its exit code."""
        self.look_until(lambda: False)
        assert self.exit_code is not None
        while self.terminal.read():
            pass
        return self.exit_code

    @property
    def exit_code(self) -> int | None:
        if self._exit_code is None:
            found, status = os.waitpid(self.pid, os.WNOHANG)
            self._exit_code = os.waitstatus_to_exitcode(status) if found else None
        return self._exit_code


def kill_download(target: str, name: str, random: Random, shared: Path, home: Path) -> Outcome:
    """Send the signal `name` to a download, then run it again."""
    hub = FakeHub({name: fake_hub.MODEL[name] for name in _DOWNLOADED})
    hub.faults = {file: Fault(delay_s=0.01) for file in ("api", *_DOWNLOADED)}
    hub.faults["model.safetensors"] = Fault(
        cut_after=random.randrange(_CHUNK_BYTES, len(fake_hub.WEIGHTS)), times=1
    )
    outcome = Outcome()
    blobs = home / "hub/hub/models--owner--model/blobs"
    with fake_hub.serving(hub) as url:
        run = Run(_downloader(url), ["download", "-y", "owner/model"], home)
        num_requests = random.randrange(_NUM_REQUESTS)
        run.look_until(lambda: len(hub.log) >= num_requests)
        moment = time.monotonic() + random.uniform(0, _AFTER_REQUEST_S)
        run.look_until(lambda: time.monotonic() >= moment)
        run.end_by(name, random, outcome)
        outcome.orphans = orphans(_LIMIT_S)
        digests = {_digest(file): file for file in _DOWNLOADED}
        whole = [file for digest, file in digests.items() if (blobs / digest).exists()]
        outcome.num_completed, num_before = len(whole), len(hub.log)
        again = Run(_downloader(url), ["download", "-y", "owner/model"], home)
        if again.wait():
            outcome.failures.append(f"the next run failed:\n{again.terminal.look()}")
        requested = {request.path.rpartition("/")[2] for request in hub.log[num_before:]}
    outcome.lost = [f"{file} was requested again" for file in whole if file in requested]
    for digest, file in digests.items():
        blob = blobs / digest
        if not blob.exists() or blob.read_bytes() != hub.files[file]:
            outcome.lost.append(f"{file} is not there or has other content")
    folder = "hub/hub/models--owner--model"
    expected = {f"{folder}/blobs/{digest}" for digest in digests}
    expected |= {f"{folder}/snapshots/{hub.commit}/{file}" for file in _DOWNLOADED}
    expected.add(f"{folder}/refs/main")
    outcome.left = sorted(files_in(home) - expected)
    return outcome


def kill_arrival(target: str, name: str, random: Random, shared: Path, home: Path) -> Outcome:
    """Send the signal `name` to a download that quantizes, then run it again."""
    hub = FakeHub(content_of(shared / "model"))
    hub.faults = {file: Fault(delay_s=0.005) for file in hub.files}
    outcome = Outcome()
    command = ["download", "-y", "owner/model:4bit"]
    output = home / "data/swiftchat/models/owner/model:4bit"
    with fake_hub.serving(hub) as url:
        run = Run(_downloader(url), command, home)
        num_requests = random.randrange(_NUM_ARRIVAL_REQUESTS)
        run.look_until(lambda: len(hub.log) >= num_requests)
        moment = time.monotonic() + random.uniform(0, _AFTER_REQUEST_S)
        run.look_until(lambda: time.monotonic() >= moment)
        run.end_by(name, random, outcome)
        outcome.orphans = orphans(_LIMIT_S)
        outcome.num_completed = int(output.exists())
        again = Run(_downloader(url), command, home)
        if again.wait():
            outcome.failures.append(f"the next run failed:\n{again.terminal.look()}")
    expected = content_of(shared / "expected")
    found = content_of(output) if output.exists() else {}
    outcome.lost = sorted(
        file for file in found.keys() | expected if found.get(file) != expected.get(file)
    )
    place = output.relative_to(home)
    left = files_in(home) - {f"{place}/{file}" for file in expected}
    # Headers that were read before the question; the system empties this folder.
    outcome.left = sorted(file for file in left if not file.startswith("tmp/swiftchat-"))
    return outcome


def make_arriving(folder: Path) -> Path:
    """Write a repository in several weight files, and what it is when it is quantized."""
    from tests.support.tiny_llama import tiny_llama

    files = repository_files(folder / "model", tiny_llama())
    for name, content in files.items():
        (folder / "model" / name).write_bytes(content)
    converted(files, folder / "work", "4bit")
    (folder / "work" / "converted").rename(folder / "expected")
    return folder


def make_nothing(folder: Path) -> Path:
    """Downloads share nothing."""
    return folder


def _digest(file: str) -> str:
    content = fake_hub.MODEL[file]
    large = fake_hub.is_large(file)
    return hashlib.sha256(content).hexdigest() if large else fake_hub.git_digest(content)


def _downloader(url: str) -> Callable[[], None]:
    def main() -> None:
        from huggingface_hub import constants

        from swiftchat.chat.cli import main
        from swiftchat.weights.hub import client

        client._CONNECT_TIMEOUT_S = _LIMIT_S  # a busy machine lets the hub wait
        constants.HF_HUB_DOWNLOAD_TIMEOUT = int(_LIMIT_S)
        constants.ENDPOINT = url
        constants.HF_HUB_CACHE = f"{os.environ['HF_HOME']}/hub"
        constants.HF_TOKEN_PATH = "/nonexistent/token"
        main()

    return main


def make_source(folder: Path) -> Path:
    """Write the model directory that all conversions share."""
    return make_zero_model(folder, num_hidden_layers=8)


def kill_conversion(target: str, name: str, random: Random, source: Path, home: Path) -> Outcome:
    """Send the signal `name` to a conversion, then run it again unless it had ended."""
    outcome = Outcome()
    output = home / "models/out"
    command = ["convert", str(source), str(output)]
    run = Run(_main, command, home)
    if random.random() < 0.9:  # else also while it starts
        run.look_until((home / "models").exists)
    moment = time.monotonic() + random.uniform(0, 0.1)
    run.look_until(lambda: time.monotonic() >= moment)
    run.end_by(name, random, outcome)
    outcome.orphans = orphans(_LIMIT_S)
    if output.exists():
        outcome.num_completed = 1
    else:
        again = Run(_main, command, home)
        if again.wait():
            outcome.failures.append(f"the next run failed:\n{again.terminal.look()}")
    try:
        Model.open(output).checkpoint()
        (output / MANIFEST).read_bytes()
    except Exception as error:  # noqa: BLE001  (whatever it is, the model is lost)
        outcome.lost.append(f"the model is not complete: {error!r}")
    names = {file.name for file in output.glob("*")}
    outcome.left = sorted(files_in(home) - {f"models/out/{name}" for name in names})
    return outcome


def _main() -> None:
    from swiftchat.chat.cli import main

    main()
