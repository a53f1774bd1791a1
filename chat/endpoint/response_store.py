"""Responses that are kept in memory, so that a request can go on from an earlier one."""

import json
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from swiftchat.chat.endpoint.errors import ApiError

MAX_RESPONSES = 1024
MAX_LISTED = 100
MAX_BYTES = 1 << 26  # of all responses as JSON, each with the whole conversation before it


@dataclass(frozen=True)
class StoredResponse:
    """The object of a response, and all items before its answer, also of earlier responses."""

    response: dict[str, Any]
    input: list[dict[str, Any]]

    @property
    def items(self) -> list[dict[str, Any]]:
        """The items of the conversation so far."""
        return [*self.input, *self.response["output"]]


class StoredResponses:
    """The responses that were used last, by id; for several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stored: OrderedDict[str, tuple[StoredResponse, int]] = OrderedDict()
        self._num_bytes = 0

    def add(self, stored: StoredResponse) -> None:
        """Keep a response; forget those that were not used for longest if there are too many."""
        num_bytes = len(json.dumps([stored.response, stored.input]))
        with self._lock:
            self._stored[stored.response["id"]] = stored, num_bytes
            self._num_bytes += num_bytes
            while len(self._stored) > MAX_RESPONSES or self._num_bytes > MAX_BYTES:
                _, (_, forgotten_bytes) = self._stored.popitem(last=False)
                self._num_bytes -= forgotten_bytes

    def get(self, response_id: str) -> StoredResponse:
        """Return a response; raises `ApiError` 404."""
        with self._lock:
            if response_id in self._stored:
                self._stored.move_to_end(response_id)
                return self._stored[response_id][0]
        raise _missing(404, response_id, None)

    def remove(self, response_id: str) -> None:
        """Forget a response; raises `ApiError` 404."""
        with self._lock:
            if response_id in self._stored:
                self._num_bytes -= self._stored.pop(response_id)[1]
                return
        raise _missing(404, response_id, None)

    def item(self, item_id: object) -> dict[str, Any]:
        """Return an item of a stored conversation by its id; raises `ApiError` 404."""
        with self._lock:
            for stored, _ in reversed(self._stored.values()):
                for item in stored.items:
                    if item["id"] == item_id:
                        return item
        raise ApiError(404, f"no item {item_id!r:.80} is stored", None, "input")

    def items(self, previous_id: str | None) -> list[dict[str, Any]]:
        """Return the items of a conversation that goes on; raises `ApiError` 400."""
        if previous_id is None:
            return []
        try:
            return self.get(previous_id).items
        except ApiError:
            raise _missing(400, previous_id, "previous_response_id") from None


def item_page(items: Sequence[dict[str, Any]], query: Mapping[str, str]) -> dict[str, Any]:
    """Return a part of the items as a list: the newest first, unless `order` is `asc`.

    `limit` and `after`, the id of the item before the part, choose it. Raises `ApiError`.
    """
    limit, order, after = query.get("limit", "20"), query.get("order", "desc"), query.get("after")
    is_number = limit.isascii() and limit.isdecimal() and len(limit) < 9
    if not is_number or not 1 <= int(limit) <= MAX_LISTED:
        raise ApiError(400, f"limit is between 1 and {MAX_LISTED}", "invalid_value", "limit")
    if order not in ("asc", "desc"):
        raise ApiError(400, "order is asc or desc", "invalid_value", "order")
    ordered = list(items if order == "asc" else reversed(items))
    ids = [item["id"] for item in ordered]
    if after is not None and after not in ids:
        raise ApiError(400, f"there is no item {after!r:.80}", "invalid_value", "after")
    start = 0 if after is None else ids.index(after) + 1
    page = ordered[start : start + int(limit)]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": start + len(page) < len(ordered),
    }


def _missing(status: int, response_id: str, param: str | None) -> ApiError:
    message = f"no response {response_id!r:.80} is stored; the oldest ones are forgotten"
    return ApiError(status, message, "previous_response_not_found" if param else None, param)
