"""Work that succeeds on all ranks of a model, or on none."""

from collections.abc import Callable
from typing import TypeVar

from swiftchat.engine.comm.communicator import Communicator
from swiftchat.engine.comm.pipeline import Pipeline
from swiftchat.errors import SwiftchatError

T = TypeVar("T")


def on_all_ranks(
    ranks: Communicator, stages: Pipeline, run: Callable[[], T], elsewhere: SwiftchatError
) -> T:
    """Return what `run` returns if it raises no `SwiftchatError` on any rank and stage.

    Else raise that of this rank, or `elsewhere` if only others have one. `run` must not
    communicate. Raises `DeviceError` if the connection to another rank breaks.
    """
    found: T | SwiftchatError
    try:
        found = run()
    except SwiftchatError as error:
        found = error
    succeeded = ranks.min_across_ranks(int(not isinstance(found, SwiftchatError)))
    is_everywhere = min(stages.gather_from_stages(succeeded)) > 0
    if isinstance(found, SwiftchatError):
        raise found
    if not is_everywhere:
        raise elsewhere
    return found
