"""A client of an engine: sends requests to a local worker process or a remote engine."""

import contextlib
import math
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from queue import Empty, Queue
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

from swiftchat.engine.api import protocol, wire
from swiftchat.engine.api.event_check import EventCheck
from swiftchat.engine.api.local import LocalEngine
from swiftchat.engine.api.params import EngineConfig, SamplingParams
from swiftchat.engine.api.protocol import RESTART_HINT, EngineInfo, Event, Finished, Progress
from swiftchat.engine.api.serve_config import ServeConfig
from swiftchat.engine.api.tuning import Tuning
from swiftchat.engine.api.vocabulary import ConstraintSpec
from swiftchat.engine.api.wire import Message, WireError, decode
from swiftchat.errors import DeviceError, SwiftchatError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

_READER_EXIT_S = 5.0  # for the reader thread to notice a closed connection
_CHECK_INTERVAL_S = 1.0  # between checks of the engine while a caller waits for it

_MAX_EARLY_STATS = 16

T = TypeVar("T")
Arrival = tuple[float, Event | SwiftchatError]  # its time, in `perf_counter` seconds


class Generation:
    """One answer in progress: an iterable of events, of which the last is `Finished`.

    `arrived` is when the last event that was yielded came, in `perf_counter` seconds.

    Iterating raises the `SwiftchatError` that ended the generation. `KeyboardInterrupt` does not
    cancel it. After `cancel`, the iteration yields the tokens generated until then and
    `Finished("interrupt", …)`.
    """

    def __init__(
        self,
        generation_id: int,
        next_event: Callable[[], Arrival],
        cancel: Callable[[int], None],
    ) -> None:
        self.id = generation_id
        self.arrived = 0.0
        self._next_event = next_event
        self._cancel = cancel
        self._ended = False

    def __iter__(self) -> Iterator[Event]:
        while not self._ended:
            self.arrived, event = self._next_event()
            self._ended = isinstance(event, Finished | SwiftchatError)
            if isinstance(event, SwiftchatError):
                raise event
            yield event

    def cancel(self) -> None:
        """Send a request to stop after the engine's current step; return at once."""
        if not self._ended:
            self._cancel(self.id)


class EngineConnection(Protocol):
    """A client's connection to an engine: `LocalEngine` or `RemoteEngine`.

    `connection` sends and receives messages over `socket`. Other terminals can attach to the engine
    at `socket_path`, if it has one.
    """

    socket: socket.socket
    socket_path: Path | None
    connection: "Connection"

    def check(self, is_ready: bool, received: bool) -> DeviceError | None:
        """Return an error if the engine cannot answer any more; called every second of waiting.

        `is_ready`: the model is loaded. `received`: a message came since the previous call.
        """

    def exit_reason(self) -> DeviceError:
        """Return the reason why the connection has ended."""

    def kill(self) -> None:
        """End an engine that does not answer, or disconnect from it."""

    def wait_ended(self) -> None:
        """Wait until a local worker has ended, after the connection was shut down."""

    def close(self) -> None:
        """Release resources; nothing may use the engine any more."""


class EngineClient:
    """A connection to an engine with one model; a context manager.

    `start` starts a worker process, unless `remote` is given; with `serve` it also serves other
    terminals. The model is loaded in the background; `wait_ready` waits for it. When the engine
    ends or is stopped, the current generations raise `DeviceError` with the exit reason, as does
    every later call. `is_attached`: the engine belongs to another process. `phases` are the
    phases of loading, in order, each with its start in `perf_counter` seconds.
    """

    def __init__(
        self,
        config: EngineConfig,
        model_path: Path,
        remote: EngineConnection | None = None,
        serve: ServeConfig | None = None,
    ) -> None:
        self.config = config
        self.model_path = model_path
        self.is_attached = remote is not None
        self.phases: list[tuple[str, float]] = []
        self._remote, self._serve = remote, serve
        self._next_id = 1
        self._send_lock = threading.Lock()
        self._state = threading.Condition()
        self._info: EngineInfo | None = None
        self._failure: SwiftchatError | None = None
        self._progress: Progress | None = None
        self._generations: dict[int, tuple[Queue[Arrival], EventCheck]] = {}
        self._stats: Queue[Message | SwiftchatError] = Queue()
        self._num_stats_due = 0  # replies to come, those of interrupted calls too
        self._closing = False
        self._received = False  # a message since the last check
        self._last_check = -math.inf

    def start(self) -> Self:
        """Start the worker process, unless the engine is remote, and the reader thread."""
        self._begin_phase("starting a process" if self._remote is None else "attaching")
        self._engine = self._remote or LocalEngine(self.config, self.model_path, self._serve)
        self._connection = self._engine.connection
        self._reader = threading.Thread(target=self._read, name="engine-reader", daemon=True)
        self._reader.start()
        return self

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """The worker's process id; raises `ValueError` for a remote engine."""
        if not isinstance(self._engine, LocalEngine):
            raise ValueError("a remote engine is no child of this process")
        return self._engine.pid

    @property
    def socket_path(self) -> Path | None:
        """The Unix socket at which other terminals can attach to the engine, if there is one."""
        return self._engine.socket_path

    @property
    def has_ended(self) -> bool:
        """Whether the engine has ended, or cannot answer any more."""
        return self._failure is not None

    @property
    def info(self) -> EngineInfo | None:
        """The loaded model and its memory; None while loading."""
        return self._info

    @property
    def progress(self) -> Progress | None:
        """The latest loading progress; never blocks."""
        return self._progress

    def wait_ready(self, on_progress: Callable[[Progress], None] | None = None) -> EngineInfo:
        """Wait until the model is loaded; raises the error that made loading fail."""
        shown = None
        while True:
            with self._state:
                while self._progress is shown and not (self._info or self._failure):
                    if not self._state.wait(_CHECK_INTERVAL_S):
                        self._check_engine()
                shown = self._progress
            if self._failure is not None:
                raise self._failure
            if self._info is not None:
                return self._info
            if on_progress is not None and shown is not None:
                on_progress(shown)

    def wait_ended(self) -> SwiftchatError | None:
        """Wait until the engine ends and return the reason, None after `close`."""
        while self._reader.is_alive() and self._failure is None:
            self._reader.join(_CHECK_INTERVAL_S)
            if not self._closing:
                self._check_engine()
        return self._failure

    def generate(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        constraint: ConstraintSpec | None = None,
        tuning: Tuning | None = None,
    ) -> Generation:
        """Start an answer to a prompt's token ids; may be called before the model is ready."""
        with self._state:
            if self._failure is not None:
                raise self._failure
            generation_id, self._next_id = self._next_id, self._next_id + 1
            events: Queue[Arrival] = Queue()
            self._generations[generation_id] = events, EventCheck(prompt, params)
        self._command(
            {
                "type": "generate",
                "id": generation_id,
                "prompt": list(prompt),
                "params": params.to_wire(),
                **({} if constraint is None else {"constraint": constraint.to_wire()}),
                **({"tuning": tuning.to_wire()} if tuning else {}),
            }
        )
        return Generation(generation_id, lambda: self._next(events), self._cancel)

    def stats(self, *, measure: bool = False) -> dict[str, Any]:
        """Return the engine's counters: blocks free, used, cached; tokens computed and reused.

        With `measure`, include the GPU's bandwidth ceiling, which the first such call measures.
        """
        self._num_stats_due += 1  # first: the answer may come at once
        self._command({"type": "stats", "measure": measure})
        while True:  # replies come in the order of the calls
            answer = self._next(self._stats)
            if isinstance(answer, SwiftchatError):
                raise answer
            self._num_stats_due -= 1
            if not self._num_stats_due:
                return {key: value for key, value in answer.items() if key != "type"}

    def close(self) -> None:
        """Disconnect: a local worker exits at once, a remote engine ends this client's requests."""
        self._closing = True
        with contextlib.suppress(OSError):  # already closed by the engine
            self._engine.socket.shutdown(socket.SHUT_RDWR)
        self._engine.wait_ended()
        self._reader.join(_READER_EXIT_S)  # it may be asking the engine for its exit reason
        self._connection.close()
        self._engine.socket.close()
        self._engine.close()

    def _next(self, events: Queue[T]) -> T:
        while True:
            with contextlib.suppress(Empty):
                return events.get(timeout=_CHECK_INTERVAL_S)
            self._check_engine()

    def _check_engine(self) -> None:
        # Each waiting thread calls this, but the engine counts checks as seconds.
        now = time.monotonic()
        if now - self._last_check < 0.9 * _CHECK_INTERVAL_S:
            return
        self._last_check = now
        received, self._received = self._received, False
        error = self._engine.check(self._info is not None, received)
        if error is not None:
            self._fail(error)
            self._engine.kill()

    def _cancel(self, generation_id: int) -> None:
        with contextlib.suppress(OSError):  # the engine has ended, and the generation with it
            self._send({"type": "cancel", "id": generation_id})

    def _command(self, message: Message) -> None:
        try:
            self._send(message)
        except OSError:
            self._reader.join(_READER_EXIT_S)
            raise self._failure or DeviceError("the engine process has ended") from None

    def _send(self, message: Message) -> None:
        with self._send_lock:
            wire.send(self._connection, message)

    def _begin_phase(self, label: str) -> None:
        if self._info is None and not (self.phases and self.phases[-1][0] == label):
            self.phases.append((label, time.perf_counter()))

    def _read(self) -> None:
        try:
            while True:
                message = wire.receive(self._connection, wire.MAX_MESSAGE_BYTES)
                self._received = True
                for one in wire.messages_of(message):
                    self._dispatch(one)
        except WireError as error:
            self._fail(DeviceError(f"the engine sent an invalid message: {error}", RESTART_HINT))
            self._engine.kill()
        except (EOFError, OSError):
            if not self._closing:
                self._fail(self._engine.exit_reason())

    def _dispatch(self, message: Message) -> None:
        match message["type"]:
            case "progress":
                progress = decode(message, Progress)
                self._begin_phase(progress.label)
                with self._state:
                    self._progress = progress
                    self._state.notify_all()
            case "ready":
                self._begin_phase("ready")
                with self._state:
                    self._info = EngineInfo.from_wire(message)
                    self._state.notify_all()
            case "alive":
                pass
            case "stats" if self._stats.qsize() >= self._num_stats_due + _MAX_EARLY_STATS:
                raise WireError("stats without a request for them")
            case "stats":
                self._stats.put(message)
            case "error" if message.get("id") is None:
                self._fail(protocol.error_from(message))
            case kind:
                event = protocol.event_from(message)
                ended = kind in ("finished", "error")
                generation_id = decode(message.get("id"), int, "id")
                with self._state:
                    found = self._generations.get(generation_id)
                    if found is None:
                        raise WireError(f"no generation has the id {generation_id}")
                    events, check = found
                    if not isinstance(event, SwiftchatError):
                        check.check(event)
                    if ended:
                        del self._generations[generation_id]
                events.put((time.perf_counter(), event))

    def _fail(self, error: SwiftchatError) -> None:
        """Raise the first error in all waiting callers and in all later calls."""
        with self._state:
            if self._failure is None:
                self._failure = error
            waiting, self._generations = list(self._generations.values()), {}
            self._state.notify_all()
        for events, _ in waiting:
            events.put((time.perf_counter(), self._failure))
        self._stats.put(self._failure)
