"""User names and passwords in addresses are neither shown nor kept."""

import pytest
from click.testing import CliRunner

from swiftchat.chat import cli
from swiftchat.chat.terminal.error_report import print_error
from swiftchat.errors import UsageError
from swiftchat.errors.addresses import without_passwords


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://me:secret@h.x/p?q#f", "https://h.x/p?q#f"),
        ("see HTTP://TOKEN@h.x, socks5://u:p@h:1", "see HTTP://h.x, socks5://h:1"),
        ("https://me:se@cr:et@h.x", "https://h.x"),
        ("https://h.x/@me and me@h.x and ssh://git@h.x/~a@b", None),
        ("a://b@" * 3, None),
        ("no address: // @ a@b", "no address: // @ a@b"),
    ],
)
def test_without_passwords(text: str, shown: str | None) -> None:
    found = without_passwords(text)
    assert "secret" not in found and (shown is None or found == shown)
    assert without_passwords(found) == found


def test_errors_and_config_show_have_none(capsys: pytest.CaptureFixture[str]) -> None:
    print_error(UsageError("https://me:secret@h.x/ is wrong", "try http://secret@h.x"), debug=False)
    assert capsys.readouterr().err == "error: https://h.x/ is wrong\nhint: try http://h.x\n"
    values = {"mcp": ["https://me:secret@h.x/mcp"], "system": "of http://a:secret@b"}
    done = CliRunner().invoke(cli.swiftchat, ["config", "show"], default_map=values)
    assert done.exit_code == 0 and '"https://h.x/mcp"' in done.stdout
    assert "secret" not in done.output


@pytest.mark.parametrize(
    "value", ["https://me:secret@h.x/mcp", "https://me:secret@[h.x/", "https://me:secret@"]
)
def test_an_error_about_a_server_has_none(value: str) -> None:
    arguments = ["--offline", "--mcp", value, "-m", "x", "-p", "x"]
    done = CliRunner().invoke(cli.swiftchat, arguments)
    assert done.exit_code and "secret" not in done.output
