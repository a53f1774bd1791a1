"""GPT-2's byte alphabet: bytes written as printable characters."""

from collections.abc import Iterable


def _alphabet() -> list[str]:
    """Return the character of each byte: itself if printable in Latin-1, else from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


_SYMBOLS = dict(enumerate(_alphabet()))
_SEPARATOR = "\u2028"  # neither a symbol nor in Latin-1
_BYTES = {ord(symbol): byte for byte, symbol in _SYMBOLS.items()}


def to_symbols(text: str) -> str:
    """Return one symbol for each byte of `text` in UTF-8."""
    return text.encode().decode("latin-1").translate(_SYMBOLS)


def symbols_of(tokens: Iterable[bytes]) -> list[str]:
    """Return each token written in symbols, one for each byte."""
    # Translating the joined tokens is several times faster than one by one.
    return (
        _SEPARATOR.join(token.decode("latin-1") for token in tokens)
        .translate(_SYMBOLS)
        .split(_SEPARATOR)
    )


def to_bytes(token: str) -> bytes:
    """Return the bytes of `token`; one with a character outside the alphabet is plain UTF-8."""
    try:
        return bytes(map(_BYTES.__getitem__, map(ord, token)))
    except KeyError:
        return token.encode()
