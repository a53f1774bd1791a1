"""Load the HTTP API with clients of all kinds; exit with status 1 if anything is lost or left over.

A server of a tiny model gets 64 clients at a time: whole answers, streams, slow readers, streams
and requests that are cut off, several prompts with their log probabilities, formats, strict tools,
embeddings, wrong requests and connections that send half a request. After each quarter of the time,
when nothing is computed, it must have the same memory, open files and threads, and no KV block in
use; each answer must be whole, and every stream that is read to its end must end with `[DONE]`.

    nice python benchmarks/api_load.py --minutes 10
"""

import argparse
import json
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import psutil

from swiftchat.engine.api.attach import attach
from swiftchat.engine.api.client import EngineClient
from swiftchat.engine.api.params import EngineConfig
from tests.support.fake_engine import TOOL_TEMPLATE
from tests.support.remote_engine import chat_model_folder

NUM_PARTS = 4  # of the time, each with a measurement at its end
MAX_GROWTH = 0.05  # of the memory
EXTRA_FILES, EXTRA_THREADS = 2, 4  # kept-alive connections and idle threads of a pool
START_S, IDLE_S, REQUEST_S = 120.0, 60.0, 120.0
BUSY = 503
SCHEMA = {
    "type": "object",
    "properties": {"age": {"type": "integer"}},
    "required": ["age"],
}
TOOL = {"type": "function", "function": {"name": "add", "strict": True, "parameters": SCHEMA}}
# Byte models rarely write an end: all answers have a length.
MESSAGES = [{"role": "user", "content": "hello"}]


@dataclass(frozen=True)
class Usage:
    """What a process holds when nothing is computed."""

    memory_bytes: int
    files: int
    threads: int


class Load:
    """Clients of the server at `port`; `counts` are events, `problems` what must not happen."""

    def __init__(self, port: int, model: str, seed: int) -> None:
        self.port, self.model = port, model
        self.counts: Counter[str] = Counter()
        self.problems: list[str] = []
        self._seed, self._lock = seed, threading.Lock()
        self._kinds: tuple[Callable[[random.Random], str], ...] = (
            *(self._whole, self._stream, self._slow, self._cut_stream, self._cut_request),
            *(self._prompts, self._formatted, self._embeddings, self._wrong, self._half),
        )

    def run(self, seconds: float, num_clients: int) -> None:
        """Run the clients for this time."""
        end = time.monotonic() + seconds
        threads = [
            threading.Thread(target=self._client, args=(number, end))
            for number in range(num_clients)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self._seed += num_clients

    def _client(self, number: int, end: float) -> None:
        chance = random.Random(self._seed + number)
        while time.monotonic() < end:
            kind = chance.choice(self._kinds)
            try:
                found = kind(chance)
            except (OSError, HTTPException, ValueError, KeyError, AssertionError) as error:
                self.problems.append(f"{kind.__name__}: {error!r:.200}")
                found = "failed"
            with self._lock:
                self.counts[f"{kind.__name__.strip('_')}: {found}"] += 1

    def _send(self, path: str, **fields: Any) -> tuple[HTTPConnection, Any]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=REQUEST_S)
        body = json.dumps({"model": self.model, **fields})
        connection.request("POST", f"/v1/{path}", body)
        return connection, connection.getresponse()

    def _answered(self, path: str, expected: int = 200, **fields: Any) -> Any:
        """Return the body of a response, None if the server is busy."""
        connection, response = self._send(path, **fields)
        with closing(connection):
            body = json.loads(response.read())
        assert response.status in (expected, BUSY), body
        return None if response.status == BUSY else body

    def _chat(self, chance: random.Random, **fields: Any) -> dict[str, Any]:
        words = " ".join(
            chance.choice(("one", "two", "three")) for _ in range(chance.randrange(40))
        )
        messages = [{"role": "user", "content": words or "hi"}]
        return {"messages": messages, "max_tokens": chance.randrange(1, 48), **fields}

    def _whole(self, chance: random.Random) -> str:
        found = self._answered("chat/completions", **self._chat(chance, n=chance.randrange(1, 4)))
        assert found is None or all(one["finish_reason"] for one in found["choices"])
        return "busy" if found is None else "answered"

    def _stream(self, chance: random.Random, pause_s: float = 0.0, num_events: int = -1) -> str:
        fields = self._chat(chance, stream=True)
        connection, response = self._send("chat/completions", **fields)
        with closing(connection):
            if response.status == BUSY:
                return "busy"
            events = []
            while line := response.readline():
                if line.startswith(b"data: "):
                    events.append(line)
                    time.sleep(pause_s)  # a reader that is slower than the model
                if len(events) == num_events:
                    return "cut off"
        assert events[-1] == b"data: [DONE]\n", events[-2:]
        return "answered"

    def _slow(self, chance: random.Random) -> str:
        return self._stream(chance, pause_s=chance.uniform(0.01, 0.2))

    def _cut_stream(self, chance: random.Random) -> str:
        return self._stream(chance, num_events=chance.randrange(1, 8))

    def _cut_request(self, chance: random.Random) -> str:
        """Leave before the answer has come."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=REQUEST_S)
        with closing(connection):
            fields = {"model": self.model, **self._chat(chance, max_tokens=400)}
            connection.request("POST", "/v1/chat/completions", json.dumps(fields))
            time.sleep(chance.uniform(0, 0.3))
        return "cut off"

    def _prompts(self, chance: random.Random) -> str:
        prompts = ["a", "bc", "def"][: chance.randrange(1, 4)]
        found = self._answered(
            "completions", prompt=prompts, echo=True, logprobs=2, max_tokens=chance.randrange(4)
        )
        assert found is None or len(found["choices"]) == len(prompts)
        return "busy" if found is None else "answered"

    def _formatted(self, chance: random.Random) -> str:
        form = {"response_format": {"type": "json_object", "schema": SCHEMA}}
        fields = chance.choice((form, {"tools": [TOOL], "tool_choice": "required"}))
        found = self._answered("chat/completions", **self._chat(chance, max_tokens=64, **fields))
        return "busy" if found is None else "answered"

    def _embeddings(self, chance: random.Random) -> str:
        texts = ["x" * chance.randrange(1, 60) for _ in range(chance.randrange(1, 9))]
        found = self._answered("embeddings", input=texts)
        assert found is None or len(found["data"]) == len(texts)
        return "busy" if found is None else "answered"

    def _wrong(self, chance: random.Random) -> str:
        fields = chance.choice(
            ({"top_kk": 1}, {"temperature": -1}, {"grammar": "root ::= missing"})
        )
        self._answered("chat/completions", 400, messages=MESSAGES, **fields)
        return "refused"

    def _half(self, chance: random.Random) -> str:
        with socket.create_connection(("127.0.0.1", self.port), REQUEST_S) as connection:
            connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: local")
            time.sleep(chance.uniform(0, 0.5))
        return "cut off"


def usage(pid: int) -> list[Usage]:
    """Return what a process and its children hold."""
    parent = psutil.Process(pid)
    return [
        Usage(process.memory_info().rss, process.num_fds(), process.num_threads())
        for process in (parent, *sorted(parent.children(recursive=True), key=lambda one: one.pid))
    ]


def wait_idle(engine: EngineClient) -> None:
    """Wait until the engine computes nothing; raises `TimeoutError`."""
    end = time.monotonic() + IDLE_S
    while used := engine.stats()["used_blocks"]:
        if time.monotonic() > end:
            raise TimeoutError(f"{used} KV blocks are still in use")
        time.sleep(0.2)


def compared(measured: list[list[Usage]]) -> list[str]:
    """Return what the processes hold in addition; print all measurements."""
    problems = []
    for name, *usages in zip(("server", "engine", "other"), *measured, strict=False):
        memory = ", ".join(f"{one.memory_bytes / 1e6:.1f}" for one in usages)
        files = ", ".join(str(one.files) for one in usages)
        threads = ", ".join(str(one.threads) for one in usages)
        print(f"{name}: memory {memory} MB; open files {files}; threads {threads}", flush=True)
        old, new = usages[0], usages[-1]
        if new.memory_bytes > (1 + MAX_GROWTH) * old.memory_bytes:
            problems.append(f"the memory of the {name} grew by more than {MAX_GROWTH:.0%}")
        if new.files > old.files + EXTRA_FILES or new.threads > old.threads + EXTRA_THREADS:
            problems.append(f"the {name} holds more files or threads")
    if len({*map(len, measured)}) > 1:
        problems.append(f"the number of processes changed: {[*map(len, measured)]}")
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="load-") as name:
        os.environ["XDG_RUNTIME_DIR"] = name
        folder = Path(name) / "tiny"
        folder.mkdir()
        chat_model_folder(folder, max_position_embeddings=2048)
        settings = folder / "tokenizer_config.json"
        with_tools = {**json.loads(settings.read_text()), "chat_template": TOOL_TEMPLATE}
        settings.write_text(json.dumps(with_tools))
        command = [sys.executable, "-m", "swiftchat.chat", "serve", str(folder)]
        command += ["--device", "cpu", "--threads", "1", "--openai", "127.0.0.1:0", "--no-auth"]
        log = Path(name) / "log"
        with log.open("w") as output:
            server = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            problems = run(server.pid, folder, log, options)
        finally:
            server.terminate()
            server.wait(IDLE_S)
        problems += [f"the server: {line}" for line in log.read_text().splitlines()[4:-1]][:20]
    for problem in problems:
        print(f"problem: {problem}")
    return int(bool(problems))


def run(pid: int, folder: Path, log: Path, options: argparse.Namespace) -> list[str]:
    """Load the server, measure it, and return the problems."""
    end = time.monotonic() + START_S
    while not (found := re.search(r"http://127.0.0.1:(\d+)", log.read_text())):
        if time.monotonic() > end:
            raise TimeoutError(log.read_text())
        time.sleep(0.2)
    load, seconds = Load(int(found[1]), folder.name, options.seed), 60 * options.minutes
    config = EngineConfig(device="cpu", num_threads=1)
    engine = attach(config, folder)
    assert engine is not None
    with closing(engine):
        measured = []
        for _ in range(NUM_PARTS):
            load.run(seconds / NUM_PARTS, options.clients)
            wait_idle(engine)
            measured.append(usage(pid))
        problems = compared(measured)
    print(", ".join(f"{name}: {count}" for name, count in sorted(load.counts.items())))
    return [*problems, *load.problems[:20]]


if __name__ == "__main__":
    sys.exit(main())
