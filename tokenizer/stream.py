"""Text out of tokens that come one at a time."""

import codecs
from collections.abc import Callable

__all__ = ["TokenStream"]


class TokenStream:
    """Decodes ids one by one; the pieces together are exactly what decoding all at once gives.

    A character whose bytes are spread over tokens comes out once it is whole; bytes that can
    no longer become one come out as U+FFFD. What has come out never changes.
    """

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        """Decode by `token_bytes`, which gives the bytes of an id, none for one to be skipped."""
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """Take in one id and return the text that is now certain, which may be empty."""
        return self._decoder.decode(self._token_bytes(token_id))

    def flush(self) -> str:
        """Return what is left at the end, U+FFFD for an unfinished character, and start anew."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest
