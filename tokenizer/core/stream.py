"""Text out of tokens that come one at a time."""

import codecs
from collections.abc import Callable

__all__ = ["TokenStream"]


class TokenStream:
    """Decodes ids one by one; the pieces together are exactly what decoding all at once gives.

    A character whose bytes are spread over tokens comes out once it is whole; bytes that can
    no longer become one come out as U+FFFD. What has come out never changes.
    """

    def __init__(self, reader: Callable[[], Callable[[int], bytes]]) -> None:
        """Decode by what `reader` makes for each text: the bytes of its ids, one after another."""
        self._reader = reader
        self._token_bytes = reader()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """Take in one id and return the text that is now certain, which may be empty."""
        return self._decoder.decode(self._token_bytes(token_id))

    def flush(self) -> str:
        """Return what is left at the end, U+FFFD for an unfinished character, and start anew."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        self._token_bytes = self._reader()
        return rest
