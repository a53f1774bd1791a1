"""The terminal's side of the engine: talks to a worker, its own or one elsewhere. No torch."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from queue import Empty, Queue
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

from swiftchat.engine.api import protocol
from swiftchat.engine.api.local import LocalEngine
from swiftchat.engine.api.params import EngineConfig, SamplingParams
from swiftchat.engine.api.protocol import EngineInfo, Event, Finished, Message, Progress
from swiftchat.errors import DeviceError, SwiftchatError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

# How long the reader may take to see that the connection has ended.
_END_S = 1.0
# How often who waits for a worker looks whether it still can answer.
_LOOK_S = 1.0

T = TypeVar("T")


class Generation:
    """One answer in the making: iterate it for its events; the last one is `Finished`.

    Iterating raises the `SwiftchatError` that ended the generation, and `KeyboardInterrupt`
    passes through without canceling: the caller decides. After `cancel` the iteration still
    delivers what was generated until then and ends with `Finished("interrupt", …)`.
    """

    def __init__(
        self,
        generation_id: int,
        next_event: Callable[[], Event | SwiftchatError],
        cancel: Callable[[int], None],
    ) -> None:
        self.id = generation_id
        self._next_event = next_event
        self._cancel = cancel
        self._ended = False

    def __iter__(self) -> Iterator[Event]:
        while not self._ended:
            event = self._next_event()
            self._ended = isinstance(event, Finished | SwiftchatError)
            if isinstance(event, SwiftchatError):
                raise event
            yield event

    def cancel(self) -> None:
        """Ask the engine to stop after the step it is in; returns at once."""
        if not self._ended:
            self._cancel(self.id)


class EngineConnection(Protocol):
    """What is at the other end of a client's connection: a worker process, or an engine elsewhere.

    The connection is that of the socket.
    """

    socket: socket.socket
    connection: "Connection"

    def look(self, is_ready: bool, heard: bool) -> DeviceError | None:
        """Why it cannot answer any more, if so, asked every second by who waits for an answer.

        `is_ready`: the model is loaded. `heard`: something came since this was asked before.
        """

    def obituary(self) -> DeviceError:
        """Why the connection has ended."""

    def kill(self) -> None:
        """End it, or leave it, though it says nothing."""

    def close(self) -> None:
        """Clean up, after the connection was closed."""


class EngineClient:
    """A running engine with one model; a context manager that ends its worker, or leaves it.

    The worker is a process of this one's, started by `start`, or what `far_end` is. Loading goes on
    in the worker, and `wait_ready` waits for it. When the worker dies or is stopped, the generation
    in flight raises `DeviceError` with its signal and last words, and so does every later call; the
    caller starts a new client.
    """

    def __init__(
        self, config: EngineConfig, model_path: Path, far_end: EngineConnection | None = None
    ) -> None:
        self.config = config
        self.model_path = model_path
        self._far_end = far_end
        self._next_id = 1
        self._send_lock = threading.Lock()
        self._state = threading.Condition()
        self._info: EngineInfo | None = None
        self._failure: SwiftchatError | None = None
        self._progress: Progress | None = None
        self._generations: dict[int, Queue[Event | SwiftchatError]] = {}
        self._stats: Queue[Message | SwiftchatError] = Queue()
        self._closing = False
        self._heard = False  # something since the last look

    def start(self) -> Self:
        """Spawn the worker, if there is none elsewhere, and listen to it."""
        self._worker = self._far_end or LocalEngine(self.config, self.model_path)
        self._connection = self._worker.connection
        self._reader = threading.Thread(target=self._read, name="engine-reader", daemon=True)
        self._reader.start()
        return self

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """The worker process's; `ValueError` if it is none of this machine's."""
        if not isinstance(self._worker, LocalEngine):
            raise ValueError("the engine is no child of this process")
        return self._worker.pid

    @property
    def info(self) -> EngineInfo | None:
        """What was loaded, or None while loading."""
        return self._info

    @property
    def progress(self) -> Progress | None:
        """How far loading is, for a status line; never blocks."""
        return self._progress

    def wait_ready(self, on_progress: Callable[[Progress], None] | None = None) -> EngineInfo:
        """Wait until the model is loaded; raises what went wrong in the worker."""
        shown = None
        while True:
            with self._state:
                while self._progress is shown and not (self._info or self._failure):
                    if not self._state.wait(_LOOK_S):
                        self._look()
                shown = self._progress
            if self._failure is not None:
                raise self._failure
            if self._info is not None:
                return self._info
            if on_progress is not None and shown is not None:
                on_progress(shown)

    def generate(self, prompt: Sequence[int], params: SamplingParams) -> Generation:
        """Begin one answer to the prompt's ids; may be called before the model is ready."""
        with self._state:
            if self._failure is not None:
                raise self._failure
            generation_id, self._next_id = self._next_id, self._next_id + 1
            events: Queue[Event | SwiftchatError] = Queue()
            self._generations[generation_id] = events
        self._command(
            {
                "type": "generate",
                "id": generation_id,
                "prompt": list(prompt),
                "params": params.to_wire(),
            }
        )
        return Generation(generation_id, lambda: self._next(events), self._cancel)

    def stats(self, *, measure: bool = False) -> dict[str, Any]:
        """Counters of the worker: blocks free, used and cached, tokens computed and reused.

        With `measure`, a GPU's read ceiling too; it is measured when first asked for.
        """
        self._command({"type": "stats", "measure": measure})
        answer = self._next(self._stats)
        if isinstance(answer, SwiftchatError):
            raise answer
        return {key: value for key, value in answer.items() if key != "type"}

    def close(self) -> None:
        """End the worker, whatever it is doing: its end of the connection closes, and it exits.

        An engine elsewhere ends this client's generations.
        """
        self._closing = True
        with contextlib.suppress(OSError):  # the worker closed it before
            self._worker.socket.shutdown(socket.SHUT_RDWR)
        self._worker.close()
        self._reader.join(_END_S)
        self._connection.close()
        self._worker.socket.close()

    def _next(self, events: Queue[T]) -> T:
        while True:
            with contextlib.suppress(Empty):
                return events.get(timeout=_LOOK_S)
            self._look()

    def _look(self) -> None:
        heard, self._heard = self._heard, False
        lost = self._worker.look(self._info is not None, heard)
        if lost is not None:
            self._fail(lost)
            self._worker.kill()

    def _cancel(self, generation_id: int) -> None:
        with contextlib.suppress(OSError):  # a dead worker has nothing left to cancel
            self._send({"type": "cancel", "id": generation_id})

    def _command(self, message: Message) -> None:
        try:
            self._send(message)
        except OSError:
            self._reader.join(_END_S)
            raise self._failure or DeviceError("the engine process is gone") from None

    def _send(self, message: Message) -> None:
        with self._send_lock:
            protocol.send(self._connection, message)

    def _read(self) -> None:
        try:
            while True:
                message = protocol.receive(self._connection)
                self._heard = True
                self._dispatch(message)
        except (EOFError, OSError):
            if not self._closing:
                self._fail(self._worker.obituary())

    def _dispatch(self, message: Message) -> None:
        match message["type"]:
            case "progress":
                with self._state:
                    self._progress = Progress(message["label"], message["done"], message["total"])
                    self._state.notify_all()
            case "ready":
                with self._state:
                    self._info = EngineInfo.from_wire(message)
                    self._state.notify_all()
            case "alive":
                pass
            case "stats":
                self._stats.put(message)
            case "error" if message["id"] is None:
                self._fail(protocol.error_from(message))
            case kind:
                ended = kind in ("finished", "error")
                with self._state:
                    find = self._generations.pop if ended else self._generations.__getitem__
                    events = find(message["id"])
                events.put(protocol.event_from(message))

    def _fail(self, error: SwiftchatError) -> None:
        """Give the error to everyone who waits, once, and to everyone who asks later."""
        with self._state:
            if self._failure is None:
                self._failure = error
            waiting, self._generations = list(self._generations.values()), {}
            self._state.notify_all()
        for events in waiting:
            events.put(self._failure)
        self._stats.put(self._failure)
