"""The progress display of downloads and conversions."""

import io
import sys

import pytest
from rich.live import Live

from swiftchat.chat.terminal.progress import progress_display


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("method", ["_enable_redirect_io", "_disable_redirect_io"])
def test_a_signal_while_the_display_starts_or_stops_leaves_the_cursor_visible(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = getattr(Live, method)

    def interrupted(live: Live) -> None:
        monkeypatch.setattr(Live, method, plain)
        raise SystemExit(143)

    screen = Screen()
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(Live, method, interrupted)
    with pytest.raises(SystemExit), progress_display() as report:
        report("converting", 1, 2)
    assert "\x1b[?25l" in screen.getvalue()
    assert screen.getvalue().rpartition("\x1b[?25")[2][0] == "h"
