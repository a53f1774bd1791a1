"""An engine at work for its terminals: what they ask, and to whom each answer goes."""

import threading
import traceback
from itertools import count
from queue import Empty, Queue
from typing import TYPE_CHECKING

from swiftchat.engine.api import protocol
from swiftchat.engine.api.params import SamplingParams
from swiftchat.engine.api.protocol import Finished, Message, Prefill, Tokens
from swiftchat.engine.server.connection import Terminal
from swiftchat.engine.server.validate import checked
from swiftchat.errors import KernelCompileError, OutOfMemory, SwiftchatError, UsageError

if TYPE_CHECKING:
    from swiftchat.engine.generation.engine import Engine
    from swiftchat.engine.ranks.spmd import SpmdEngine

    AnyEngine = Engine | SpmdEngine

# Commands that wait for the engine; who sends more waits. And so many are obeyed between two steps.
_MOST_WAITING = 64


class EngineServer:
    """Terminals come and go; each has its own numbers for what it asks for.

    `serve` is called on a thread for each terminal, `work` on the engine's one; the rest by any.
    """

    def __init__(self) -> None:
        self._commands: Queue[tuple[Terminal, Message]] = Queue(_MOST_WAITING)
        self._terminals: list[Terminal] = []
        self._joining = threading.Lock()
        self._state: Message | None = None
        self._ids = count(1)
        self._askers: dict[int, tuple[Terminal, int]] = {}  # by the engine's numbers

    @property
    def num_terminals(self) -> int:
        return len(self._terminals)

    def tell(self, state: Message) -> None:
        """Tell all terminals how it stands with the engine, and later those that come then."""
        with self._joining:
            self._state = state
            for terminal in self._terminals:
                terminal.send(state)

    def say_alive(self) -> None:
        with self._joining:
            for terminal in self._terminals:
                terminal.send({"type": "alive"})

    def progress(self, label: str, done: int, total: int) -> None:
        self.tell({"type": "progress", "label": label, "done": done, "total": total})

    def serve(self, terminal: Terminal) -> None:
        """Pass on what a terminal asks until it is gone; then its generations end."""
        with self._joining:
            self._terminals.append(terminal)
            if self._state is not None:
                terminal.send(self._state)
        try:
            while True:
                self._ask(terminal, terminal.receive())
        except (EOFError, OSError):
            terminal.close()
            with self._joining:
                self._terminals.remove(terminal)
            self._commands.put((terminal, {"type": "leave"}))

    def _ask(self, terminal: Terminal, message: Message) -> None:
        try:
            self._commands.put((terminal, checked(message)))
        except UsageError as error:
            asked = message.get("id")
            terminal.send(protocol.error_message(error, asked if type(asked) is int else None))

    def work(self, engine: "AnyEngine") -> None:
        """Generate what is asked for; raises the `SwiftchatError` after which there is no more."""
        while True:
            self._obey(engine)
            self._step(engine)

    def _obey(self, engine: "AnyEngine") -> None:
        """Carry out the commands that have come, waiting for one when idle."""
        for _ in range(_MOST_WAITING):
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

    def _generate(self, engine: "AnyEngine", terminal: Terminal, command: Message) -> None:
        params, number = SamplingParams.from_wire(command["params"]), next(self._ids)
        self._askers[number] = terminal, command["id"]
        try:
            engine.add(number, command["prompt"], params)
        except SwiftchatError as error:
            del self._askers[number]
            terminal.send(protocol.error_message(error, command["id"]))

    def _cancel(self, engine: "AnyEngine", terminal: Terminal, asked: int | None = None) -> None:
        """Cancel what a terminal asked for under this number; without one, all it asked for."""
        for number, (asker, its_number) in self._askers.items():
            if asker is terminal and asked in (None, its_number):
                engine.cancel(number)

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
        for number, event in outcomes:
            terminal, asked = self._askers[number]
            if isinstance(event, Finished | SwiftchatError):
                del self._askers[number]
            terminal.send(_message(asked, event))


def _message(asked: int, event: Prefill | Tokens | Finished | SwiftchatError) -> Message:
    match event:
        case Prefill(done, total):
            return {"type": "prefill", "id": asked, "done": done, "total": total}
        case SwiftchatError():
            return protocol.error_message(event, asked)
        case tokens_or_finished:
            return tokens_or_finished.to_wire(asked)
