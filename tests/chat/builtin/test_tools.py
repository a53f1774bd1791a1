"""What the built-in tools return, show before they change something, and refuse."""

import os
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from swiftchat.chat.builtin import commands, fetch, search
from swiftchat.chat.builtin.catalog import NAMES, builtin_tools, tool_names
from swiftchat.chat.builtin.diff import diff_rows
from swiftchat.chat.tools.tool import Action
from swiftchat.errors import FileSystemError, UsageError
from tests.support.web_server import Answer, serving
from tests.support.worker_processes import wait_until

Prepare = Callable[..., Action]


@pytest.fixture
def prepare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Prepare:
    """Return a function that prepares a call in an empty working folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHELL", "/bin/sh")
    tools = {tool.name: tool for tool in builtin_tools(NAMES, offline=False)}
    return lambda name, **arguments: tools[name].prepare(arguments)


def test_names_of_the_option() -> None:
    assert tool_names("all") == list(NAMES) == tool_names("fetch,all")
    assert tool_names("list, read") == ["read", "list"] and tool_names("") == []
    with pytest.raises(UsageError, match="no built-in tool 'rm'"):
        tool_names("read,rm")


def test_arguments_are_checked(prepare: Prepare) -> None:
    for arguments, reason in (
        ({}, "needs the argument path"),
        ({"path": 3}, "must be of type string"),
        ({"path": "a", "first_line": True}, "must be of type integer"),
        ({"path": "a", "mode": "w"}, "has no argument mode"),
    ):
        with pytest.raises(UsageError, match=reason):
            prepare("read", **arguments)
    Path("a").write_text("text")
    assert prepare("read", path="a", first_line=None, num_lines=None).run() == "text"


def test_read(prepare: Prepare) -> None:
    Path("a.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo\nthree\n")
    assert prepare("read", path="a.txt").run() == "one\ntwo\nthree"
    part = prepare("read", path="a.txt", first_line=2, num_lines=1).run()
    assert part == "two\n… (1 more lines; first_line=3 continues)"
    assert prepare("read", path="a.txt", first_line=9, num_lines=-1).run() == ""
    Path("b.bin").write_bytes(b"\0" * 100)
    with pytest.raises(UsageError, match="is not a text file"):
        prepare("read", path="b.bin").run()


def test_list(prepare: Prepare) -> None:
    assert prepare("list").run() == "(empty)"
    Path("sub").mkdir()
    Path("a.txt").write_text("abc")
    Path("link").symlink_to("/nowhere")
    os.mkfifo("pipe")
    assert prepare("list").run() == "a.txt  3\nlink  (a link)\npipe  (a pipe)\nsub/"
    for i in range(1100):
        (Path("sub") / f"{i}").touch()
    assert prepare("list", path="sub").run().endswith("\n… (100 more)")


def test_write_shows_a_diff_and_then_changes_the_file(prepare: Prepare) -> None:
    action = prepare("write", path="a.txt", content="one\ntwo")
    assert not Path("a.txt").exists(), "nothing changes before"
    assert action.rows[0] == ("tool", "write a.txt (a new file)")
    assert action.rows[2:] == [("added", "+ one"), ("added", "+ two   (no line end)")]
    assert action.run() == "a.txt: a new file"
    again = prepare("write", path="a.txt", content="one\n2\n")
    assert again.rows[0] == ("tool", "write a.txt (+1 −1)")
    assert again.rows[-2:] == [("removed", "- two   (no line end)"), ("added", "+ 2")]
    Path("a.txt").write_text("other")
    with pytest.raises(FileSystemError, match="has changed meanwhile"):
        again.run()
    assert Path("a.txt").read_text() == "other"
    assert prepare("write", path="a.txt", content="other").run() == "a.txt: changes nothing"


def test_edit_replaces_what_occurs_once(prepare: Prepare) -> None:
    Path("a.txt").write_bytes(b"one\r\ntwo\r\ntwo\r\n")
    prepare("edit", path="a.txt", old_text="one\ntwo", new_text="1\n2").run()
    assert Path("a.txt").read_bytes() == b"1\r\n2\r\ntwo\r\n", "line ends stay"
    for old, count in (("t", 1), ("x", 0), ("", 0), ("\n", 3)):
        if count != 1:
            with pytest.raises(UsageError, match=f"occurs {count} times"):
                prepare("edit", path="a.txt", old_text=old, new_text="y")
    Path("b.bin").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="no text in UTF-8"):
        prepare("edit", path="b.bin", old_text="a", new_text="b")


def test_nothing_in_a_diff_is_invisible() -> None:
    rows = diff_rows("a\n", "a\u200b\x1b[31m\tb\r\n")
    assert rows[-1] == ("added", "+ a\\u200b\\u001b[31m b\\r")


def test_names_of_files_may_be_anything(prepare: Prepare) -> None:
    Path("\udcff\u202e.txt").write_text("find\n")
    assert "find" in prepare("search", pattern="find").run()
    assert prepare("list").run() == "\udcff\u202e.txt  5", "made well-formed for the model"
    action = prepare("write", path="\udcff\u202e.txt", content="new\n")
    assert action.rows[0] == ("tool", "write \\udcff\\u202e.txt (+1 −1)")
    assert prepare("read", path="../\u202e").warning.endswith(
        "/\\u202e is outside of the working folder"
    )


def test_diffs_of_large_texts_take_no_square_of_time() -> None:
    old = "".join(f"{i}\n" for i in range(100_000))
    new = "".join(f"{i * 7 % 100_001}\n" for i in range(100_000))
    assert len(diff_rows(old, new)) > 100_000
    changed = old.replace("\n50000\n", "\nx\n")
    assert [row for part, row in diff_rows(old, changed) if part in ("added", "removed")] == [
        "- 50000",
        "+ x",
    ]
    assert diff_rows(old, changed)[0] == ("notice", "@@ from line 49998 @@")


def test_search(prepare: Prepare, monkeypatch: pytest.MonkeyPatch) -> None:
    Path(".gitignore").write_text("*.log\n")
    for name in ("a.txt", "b.log", ".env"):
        Path(name).write_text("x\nfind me\n")
    Path("link.txt").symlink_to("/etc/hosts")
    Path("b.bin").write_bytes(b"find\0me")
    found = prepare("search", pattern="f.nd").run()
    assert found == "a.txt:2: find me\n(not searched: 1 files that are no text, or large)"
    assert prepare("search", pattern="find", path="b.log").run() == "b.log:2: find me"
    assert prepare("search", pattern="f[0-9]", path="a.txt").run() == "(no line matches)"
    for pattern, path, reason in (("(", ".", "not valid"), ("x", "gone", "No such file")):
        with pytest.raises(UsageError, match=reason):
            prepare("search", pattern=pattern, path=path).run()
    Path("a.txt").write_text("x\n" * 300)
    assert prepare("search", pattern="x").run().endswith("… (more than 200 lines match)")


def test_an_expression_that_never_ends_is_stopped(
    prepare: Prepare, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "_LIMIT_S", 3.0)
    Path("a.txt").write_text("ab\n" + "a" * 60 + "!\n")
    found = prepare("search", pattern="^(a+)+b$").run()
    assert found == "a.txt:1: ab\n(stopped after 3 s; a simpler expression may help)"


def test_shell(prepare: Prepare) -> None:
    action = prepare("shell", command="printf '\\033[31mred\\033[0m\\n'; pwd; exit 3")
    assert action.rows == [
        ("tool", f"shell, sh in {Path.cwd()}"),
        ("code", "$ printf '\\033[31mred\\033[0m\\n'; pwd; exit 3"),
    ]
    assert action.run() == f"red\n{Path.cwd()}\n(exit status 3)"
    assert prepare("shell", command="true").run() == "(no output)"
    assert prepare("shell", command="kill -9 $$").run() == "(ended by SIGKILL)"
    for invalid in ("", " \n", "x" * 200_000):
        with pytest.raises(UsageError):
            prepare("shell", command=invalid)
    with pytest.raises(UsageError, match="cannot be started"):
        prepare("shell", command="a\0b").run()


def test_a_command_cannot_read_the_terminal(prepare: Prepare) -> None:
    """Neither as its input nor by its name."""
    assert prepare("shell", command="cat; read x </dev/tty || echo none").run().endswith("none")


def test_limits_of_commands(prepare: Prepare, monkeypatch: pytest.MonkeyPatch) -> None:
    endless = prepare("shell", command="yes").run()
    assert endless.endswith("y\n(ended by the limit: more than 1024 KiB of output)")
    monkeypatch.setattr(commands, "_LIMIT_S", 1.0)
    assert prepare("shell", command="echo a; sleep 600").run() == "a\n(ended by the limit: 1 s)"
    closed = prepare("shell", command="exec >&- 2>&-; sleep 600").run()
    assert closed == "(ended by the limit: 1 s)"


@pytest.mark.parametrize("way", ["sleep 600 &", "(sleep 600 &)", "setsid sleep 600 & sleep 600"])
def test_nothing_that_a_command_starts_goes_on(
    prepare: Prepare, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setattr(commands, "_LIMIT_S", 2.0)
    command = f"{way}\necho started"
    marker = str(Path.cwd())  # of the processes of this test
    prepare("shell", command=command).run()

    def left() -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            try:
                found += [process] if process.cwd() == marker else []
            except psutil.Error:
                continue
        return [one for one in found if one.pid != os.getpid() and one.name() == "sleep"]

    wait_until(lambda: not left())


def test_python_takes_no_modules_of_the_folder(
    prepare: Prepare, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("json.py").write_text("print('of the folder')")
    Path("sitecustomize.py").write_text("print('of the folder')")
    monkeypatch.setenv("PYTHONPATH", str(Path.cwd()))
    action = prepare("python", code="import json, os\n\nprint(json.dumps(os.getcwd()))")
    assert action.rows[0] == ("tool", f"python in {Path.cwd()}")
    assert [row for _, row in action.rows[1:]] == [
        "  import json, os",
        "  ",
        "  print(json.dumps(os.getcwd()))",
    ]
    assert action.run() == f'"{Path.cwd()}"'
    assert "ZeroDivisionError" in prepare("python", code="1 / 0").run()
    assert "EOFError" in prepare("python", code="input()").run()


def test_fetch(prepare: Prepare, monkeypatch: pytest.MonkeyPatch) -> None:
    for url, near in (
        ("https://example.org/a", False),
        ("http://8.8.8.8/", False),
        ("http://localhost:80/", True),
        ("http://127.0.0.1/", True),
        ("http://192.168.1.1/", True),
        ("http://169.254.169.254/latest", True),
        ("http://[::1]/", True),
        ("http://printer/", True),
        ("http://nas.local./", True),
        ("http://2130706433/", True),
        ("http://0x7f.1/", True),
    ):
        assert bool(prepare("fetch", url=url).warning) == near, url
    assert prepare("fetch", url="https://example.org/a").kind == "fetch from example.org"
    for invalid in ("file:///etc/passwd", "example.org", "http://", "ftp://h/x", "http://[x"):
        with pytest.raises(UsageError, match="is not an address"):
            prepare("fetch", url=invalid)
    page = Answer(b"<h1>Title</h1><p>Some <b>text</b>.</p>", "text/html")
    with serving({"/page": page}) as (address, _):
        assert prepare("fetch", url=f"{address}/page").run() == "# Title\n\nSome **text**.\n"
    moved = Answer(status=302, headers={"Location": "http://127.0.0.1:9/private"})
    with serving({"/moved": moved, "/page": page}) as (address, requested):
        # The server is taken for one of the web, as it would be by another name.
        monkeypatch.setattr(fetch, "_is_near", lambda host: host == "127.0.0.1")
        address = address.replace("127.0.0.1", "localhost")
        with pytest.raises(UsageError, match="localhost redirects to http"):
            prepare("fetch", url=f"{address}/moved").run()
        assert requested == ["/moved"]
    with pytest.raises(UsageError, match="needs network access"):
        builtin_tools(["fetch"], offline=True)[0].prepare({"url": "https://example.org"}).run()
