"""An answer whose tokens are known already, such as a further beam of a beam search."""

import time
from collections.abc import Sequence

from swiftchat.engine.api.client import Generation
from swiftchat.engine.api.params import SamplingParams
from swiftchat.engine.api.protocol import Event
from swiftchat.engine.api.tuning import Tuning
from swiftchat.engine.api.vocabulary import ConstraintSpec


class KnownAnswer:
    """Stands in for the engine of an `Answer`; its events, of which the last is `Finished`."""

    def __init__(self, events: Sequence[Event]) -> None:
        self._events = events

    def generate(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        constraint: ConstraintSpec | None = None,
        tuning: Tuning | None = None,
    ) -> Generation:
        """Return a generation that yields the events at once."""
        now = time.perf_counter()
        arrivals = iter([(now, event) for event in self._events])
        return Generation(0, lambda: next(arrivals), lambda generation_id: None)
