"""Incremental decoding of tokens to text."""

import codecs
from collections.abc import Callable


class TokenStream:
    """Decodes ids one by one; the pieces joined equal the text of all ids decoded at once.

    A character whose bytes span several tokens is returned when it is complete; invalid bytes are
    returned as U+FFFD. Text that was returned never changes.
    """

    def __init__(self, make_decoder: Callable[[], Callable[[int], bytes]]) -> None:
        """Decode with the function from id to bytes that `make_decoder` makes for each text."""
        self._make_decoder = make_decoder
        self._token_bytes = make_decoder()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """Add one id and return the text that is complete now, which may be empty."""
        return self._decoder.decode(self._token_bytes(token_id))

    def flush(self) -> str:
        """Return the rest (U+FFFD for an incomplete character) and reset."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        self._token_bytes = self._make_decoder()
        return rest
