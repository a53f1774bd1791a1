"""Control sequences that a terminal sends: keys of three protocols, and reports.

- Legacy keys: `ESC [ A`, `ESC [ 3 ; 5 ~`.
- modifyOtherKeys of xterm: `ESC [ 27 ; MODIFIERS ; CODE ~`.
- The keyboard protocol of kitty: `ESC [ CODE : SHIFTED : BASE ; MODIFIERS : EVENT ; TEXT u`.

MODIFIERS is one more than a sum of bits.
"""

import re

SEQUENCE = re.compile(rb"\x1b\[(?:\[[ -~]|M[^\x00-\x1f]{3}|[0-?]*[ -/]*[@-~])", re.DOTALL)
CURSOR_REPORT = re.compile(rb"\x1b\[\d+;\d+R")
_LEGACY_KEY = re.compile(rb"\x1b\[(\d{0,2})(?:;(\d{1,4})(?::(\d))?)?([A-HPQSZ~])")
_OTHER_KEY = re.compile(rb"\x1b\[27;(\d{1,4});(\d{1,7})~")
_KITTY_KEY = re.compile(
    rb"\x1b\[(\d{1,7})(?::(\d{0,7})(?::\d{0,7})?)?(?:;(\d{0,4})(?::(\d))?(?:;([\d:]{0,64}))?)?u"
)
_SHIFT, _ALT, _CONTROL, _SUPER, _HYPER, _META = (1 << bit for bit in range(6))
_IS_RELEASE = b"3"
_ESCAPE, _ENTER, _TAB, _BACKSPACE = 27, 13, 9, 127
# Control with a key that is no letter, as terminals have always sent it.
_CONTROL_KEYS = {" ": 0, "2": 0, "@": 0, "?": 0x7F, "8": 0x7F}
_CONTROL_KEYS |= dict(zip("34567", range(0x1B, 0x20), strict=True))
_CONTROL_KEYS |= dict(zip("[\\]^_", range(0x1B, 0x20), strict=True)) | {"/": 0x1F}
# The keypad in the protocol of kitty.
_KEYPAD = dict(enumerate("0123456789./*-+", start=57399)) | {57414: "\r", 57415: "=", 57416: ","}
_KEYPAD_MOVES = dict(enumerate(b"D C A B 5~ 6~ H F 2~ 3~".split(), start=57417))


def key_bytes(sequence: bytes) -> bytes:
    """Return what a legacy terminal sends for the key of a sequence, `b""` if it is no key.

    Reports (focus, mouse, device, colors) and released keys are no keys; a cursor report stays.
    Enter with Shift is Ctrl-J, which begins a new line.
    """
    if CURSOR_REPORT.fullmatch(sequence) or sequence.startswith(b"\x1b[["):  # F1 of Linux
        return sequence
    if found := _OTHER_KEY.fullmatch(sequence):
        return _key(int(found[2]), int(found[1]))
    if found := _LEGACY_KEY.fullmatch(sequence):
        return _legacy(found)
    found = _KITTY_KEY.fullmatch(sequence)
    if found is None or found[4] == _IS_RELEASE:
        return b""
    text = "".join(_character(int(code)) for code in (found[5] or b"").split(b":") if code)
    return _key(int(found[1]), int(found[3] or 1), int(found[2] or 0), text)


def _legacy(found: re.Match[bytes]) -> bytes:
    number, modifiers, event, final = found.groups()
    if event == _IS_RELEASE:
        return b""
    bits = max(0, int(modifiers or 1) - 1)
    bits = bits & (_SHIFT | _ALT | _CONTROL) | (_ALT if bits & _META else 0)  # without the locks
    if bits:
        return b"\x1b[%s;%d%s" % (number or b"1", bits + 1, final)
    if final in b"PQS":
        return b"\x1bO" + final
    return b"\x1b[" + (number if final == b"~" else b"") + final


def _key(code: int, modifiers: int, shifted: int = 0, text: str = "") -> bytes:
    """Return the bytes of a key by the code of its character."""
    bits = max(0, modifiers - 1)
    if bits & (_SUPER | _HYPER):
        return b""
    if code in _KEYPAD_MOVES:
        return b"\x1b[" + _KEYPAD_MOVES[code]
    character = _KEYPAD.get(code) or _character(code)
    if code == _ENTER or character == "\r":
        key = b"\n" if bits & _SHIFT else b"\r"
    elif code == _TAB and bits & _SHIFT:
        key = b"\x1b[Z"
    elif code in (_ESCAPE, _TAB, 8, _BACKSPACE):
        key = bytes([code])
    elif bits & _CONTROL:
        key = _with_control(character)
    elif bits & _SHIFT:
        key = (text or _character(shifted) or character.upper()).encode()
    else:
        key = (text or character).encode()
    return b"\x1b" + key if key and bits & (_ALT | _META) and key[0] != _ESCAPE else key


def _with_control(character: str) -> bytes:
    if "a" <= character.lower() <= "z":
        return bytes([ord(character.lower()) & 0x1F])
    code = _CONTROL_KEYS.get(character)
    return b"" if code is None else bytes([code])


def _character(code: int) -> str:
    """Return the character of a code; "" for controls, and for codes of keys without one."""
    is_text = 0x20 <= code < 0x7F or 0xA0 <= code < 0xD800 or 0xF900 <= code < 0xF0000
    return chr(code) if is_text else ""
