"""The server of an engine: a queue of commands from terminals, and the engine's main loop."""

import threading
import time
import traceback
from itertools import count
from queue import Empty, Queue
from typing import TYPE_CHECKING

from swiftchat.engine.api import protocol, wire
from swiftchat.engine.api.params import SamplingParams
from swiftchat.engine.api.protocol import Embedding, Event, Finished, PromptLogprobs
from swiftchat.engine.api.tuning import Tuning
from swiftchat.engine.api.vocabulary import ConstraintSpec
from swiftchat.engine.api.wire import Message
from swiftchat.engine.server.connection import TerminalConnection
from swiftchat.engine.server.validate import validate_command
from swiftchat.errors import KernelCompileError, OutOfMemory, SwiftchatError, UsageError

if TYPE_CHECKING:
    from swiftchat.engine.generation.engine import Engine
    from swiftchat.engine.ranks.spmd import SpmdEngine

    AnyEngine = Engine | SpmdEngine

_SAVE_CHECK_S = 0.005
# The capacity of the command queue, and the most commands executed between two engine steps.
_MAX_QUEUED = 64
_MAX_TOGETHER = 256  # messages in one


class EngineServer:
    """Serves one engine to any number of terminals, each with generation ids of its own.

    `serve` runs on one thread per terminal, `run` on the engine's thread; any thread may call
    the other methods. `owner` is the terminal whose end is that of the engine, if there is one.
    `keep_alive_s` is the time without use after which the engine ends; None is never.
    """

    def __init__(
        self, owner: TerminalConnection | None = None, keep_alive_s: float | None = None
    ) -> None:
        self._owner = owner
        self.keep_alive_s = keep_alive_s
        self._commands: Queue[tuple[TerminalConnection, Message]] = Queue(_MAX_QUEUED)
        self._terminals: list[TerminalConnection] = []
        self._terminals_lock = threading.Lock()
        self._state: Message | None = None
        self._ids = count(1)
        # By the engine's generation id: the terminal and the terminal's generation id.
        self._requests: dict[int, tuple[TerminalConnection, int]] = {}
        self._last_use = time.monotonic()
        self._engine: AnyEngine | None = None  # while it runs
        self._saved_requests: set[int] = set()  # engine's ids of running ones

    @property
    def num_terminals(self) -> int:
        return len(self._terminals)

    @property
    def num_guests(self) -> int:
        """The number of terminals without the owner."""
        with self._terminals_lock:
            return sum(terminal is not self._owner for terminal in self._terminals)

    @property
    def state(self) -> Message | None:
        """The message last published, None before."""
        return self._state

    @property
    def idle_s(self) -> float:
        """The time since the engine was loaded, computed or was left, 0 while it computes."""
        return 0.0 if self._requests else time.monotonic() - self._last_use

    @property
    def ends_in_s(self) -> float | None:
        """The time after which the engine ends if nobody uses it; None: never, or it is used."""
        if self.keep_alive_s is None or self.num_guests:
            return None
        return max(0.0, self.keep_alive_s - self.idle_s)

    def keep_longer(self, seconds: float) -> None:
        """Let an engine that ends without use stay at least so long."""
        if self.keep_alive_s is not None:
            self.keep_alive_s = max(seconds, self.keep_alive_s)

    def publish(self, state: Message) -> None:
        """Send the engine's state (progress, ready, error) to all present and later terminals."""
        with self._terminals_lock:
            self._state, self._last_use = state, time.monotonic()
            for terminal in self._terminals:
                terminal.send(state)

    def send_heartbeat(self) -> None:
        with self._terminals_lock:
            for terminal in self._terminals:
                terminal.send({"type": "alive"})

    def progress(self, label: str, done: int, total: int) -> None:
        self.publish({"type": "progress", "label": label, "done": done, "total": total})

    def serve(self, terminal: TerminalConnection) -> None:
        """Queue a terminal's commands until it disconnects; then cancel its generations."""
        with self._terminals_lock:
            self._terminals.append(terminal)
            if self._state is not None:
                terminal.send(self._state)
        try:
            while True:
                self._enqueue(terminal, terminal.receive())
        except (EOFError, OSError):
            terminal.close()
            with self._terminals_lock:
                self._terminals.remove(terminal)
                self._last_use = time.monotonic()
            self._commands.put((terminal, {"type": "leave"}))

    def _enqueue(self, terminal: TerminalConnection, message: Message) -> None:
        try:
            command = validate_command(message)
            if command.get("tuning") and not terminal.is_local:
                raise UsageError(
                    "the engine uses adapters only for terminals on its own machine",
                    "connect to its socket, or merge the adapter there",
                )
            self._commands.put((terminal, command))
        except UsageError as error:
            id_ = message.get("id")
            terminal.send(protocol.error_message(error, id_ if type(id_) is int else None))

    def run(self, engine: "AnyEngine") -> None:
        """Execute commands and engine steps; raises the `SwiftchatError` that ends the engine."""
        self._engine = engine
        while True:
            self._execute_commands(engine)
            self._step(engine)

    def wait_saved(self, seconds: float) -> None:
        """Wait until the KV blocks that requests want to save are on the disk, at most so long."""
        engine, deadline = self._engine, time.monotonic() + seconds
        while engine is not None and time.monotonic() < deadline:
            if not (self._saved_requests or engine.has_unsaved):
                return
            time.sleep(_SAVE_CHECK_S)

    def _execute_commands(self, engine: "AnyEngine") -> None:
        """Execute the queued commands; wait for one if the engine is idle."""
        for _ in range(_MAX_QUEUED):
            while not engine.has_work and self._commands.empty() and engine.can_prepare:
                engine.prepare()
            try:
                terminal, command = self._commands.get(block=not engine.has_work)
            except Empty:
                return
            match command["type"]:
                case "generate":
                    self._generate(engine, terminal, command)
                case "cancel":
                    self._cancel(engine, terminal, command["id"])
                case "stats":
                    terminal.send({"type": "stats", **engine.stats(command["measure"])})
                case "leave":
                    self._cancel(engine, terminal)

    def _generate(
        self, engine: "AnyEngine", terminal: TerminalConnection, command: Message
    ) -> None:
        params, engine_id = SamplingParams.from_wire(command["params"]), next(self._ids)
        self._requests[engine_id] = terminal, command["id"]
        if params.saves_cache:
            self._saved_requests.add(engine_id)
        try:
            spec = command.get("constraint")
            constraint = None if spec is None else ConstraintSpec.from_wire(spec)
            wire = command.get("tuning")
            tuning = None if wire is None else Tuning.from_wire(wire)
            engine.add(engine_id, command["prompt"], params, constraint, tuning)
        except SwiftchatError as error:
            del self._requests[engine_id]
            self._saved_requests.discard(engine_id)
            terminal.send(protocol.error_message(error, command["id"]))

    def _cancel(
        self, engine: "AnyEngine", terminal: TerminalConnection, terminal_id: int | None = None
    ) -> None:
        """Cancel a terminal's generation with this id, or without one all its generations."""
        for engine_id, (owner, id_) in self._requests.items():
            if owner is terminal and terminal_id in (None, id_):
                engine.cancel(engine_id)

    def _step(self, engine: "AnyEngine") -> None:
        try:
            outcomes = engine.step()
        except (OutOfMemory, KernelCompileError) as error:
            outcomes = engine.abort_all(error)
        except (MemoryError, RuntimeError) as error:
            from swiftchat.engine.device.device import device_error

            hint = "use a smaller --ctx-size or start a new conversation"
            found = device_error(error, hint)
            if not isinstance(found, OutOfMemory):
                raise
            traceback.print_exc()
            outcomes = engine.abort_all(OutOfMemory(f"out of memory: {found.message}", hint))
        # A step of many answers is one message for each terminal, but for what may be long.
        waiting: dict[TerminalConnection, list[Message]] = {}
        for engine_id, event in outcomes:
            terminal, terminal_id = self._requests[engine_id]
            if isinstance(event, Finished | SwiftchatError):
                self._last_use = time.monotonic()
                del self._requests[engine_id]
                self._saved_requests.discard(engine_id)
            messages = waiting.setdefault(terminal, [])
            messages.append(_event_message(terminal_id, event))
            if isinstance(event, PromptLogprobs | Embedding) or len(messages) == _MAX_TOGETHER:
                terminal.send(wire.several(waiting.pop(terminal)))
        for terminal, messages in waiting.items():
            terminal.send(wire.several(messages))


def _event_message(id_: int, event: Event | SwiftchatError) -> Message:
    if isinstance(event, SwiftchatError):
        return protocol.error_message(event, id_)
    return event.to_wire(id_)
