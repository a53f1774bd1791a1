"""Files that a user names for output: links, modes, streams, and what a failure leaves."""

import os
import stat
import threading
from pathlib import Path

import pytest

from swiftchat.chat.history.transcript import write_file
from swiftchat.chat.subcommands.batch.lines import Line
from swiftchat.chat.subcommands.batch.output import open_output as open_answers
from swiftchat.errors import FileSystemError, UsageError
from swiftchat.weights.files.output import is_stdout, is_stream, open_output

LINES = [Line(1, '"one"'), Line(2, '"two"')]


def write(path: Path, content: bytes) -> None:
    with open_output(path) as file:
        file.write(content)


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def records() -> list[dict[str, object]]:
    return [{"line": line.number, "key": line.key, "content": "x"} for line in LINES]


def answer(path: Path, *, overwrite: bool = False) -> None:
    """Write the answers of a batch, the last line first."""
    with open_answers(path, LINES, as_finished=False, overwrite=overwrite) as out:
        for record in reversed(records()):
            if record["line"] not in out.kept:
                out.add(record)
        out.finish()


def test_a_new_file_has_the_mode_of_the_umask(tmp_path: Path) -> None:
    mask = os.umask(0o027)
    try:
        write(tmp_path / "new", b"new")
    finally:
        os.umask(mask)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o755])
def test_links_stay_and_modes_too(tmp_path: Path, mode: int) -> None:
    """For each writer: of arrays, of conversations, of batches with and without answers."""
    (tmp_path / "folder").mkdir()
    real, link, chain = tmp_path / "folder/real", tmp_path / "link", tmp_path / "chain"
    real.touch(mode)
    real.chmod(mode)
    link.symlink_to("folder/real")
    chain.symlink_to("link")
    for writer in (
        lambda: write(chain, b"a"),
        lambda: write_file(str(chain), "b", force=True),
        lambda: answer(chain, overwrite=True),
        lambda: answer(chain),
    ):
        writer()
        assert chain.is_symlink() and link.is_symlink() and not real.is_symlink()
        assert stat.S_IMODE(real.stat().st_mode) == mode
    assert [line.count("content") for line in real.read_text().splitlines()] == [1, 1]
    assert names(tmp_path) == ["chain", "folder", "link"]
    assert names(tmp_path / "folder") == ["real"]


def test_a_link_to_nothing_gets_its_file(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("missing")
    write(tmp_path / "link", b"x")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "missing").read_bytes() == b"x"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")
def test_an_owner_stays(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    os.chown(file, 1234, 4321)
    write(file, b"x")
    assert (file.stat().st_uid, file.stat().st_gid) == (1234, 4321)


def test_a_failure_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"before")
    with pytest.raises(ZeroDivisionError), open_output(file) as out:
        out.write(b"half")
        raise ZeroDivisionError
    assert file.read_bytes() == b"before" and names(tmp_path) == ["file"]


def read_in_thread(fifo: Path, found: list[bytes]) -> threading.Thread:
    thread = threading.Thread(target=lambda: found.append(fifo.read_bytes()))
    thread.start()
    return thread


def test_a_fifo_gets_all_in_order(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for writer in (
        lambda: write(fifo, b"x"),
        lambda: write_file(str(fifo), "x"),
        lambda: answer(fifo),
        lambda: answer(fifo, overwrite=True),
    ):
        found: list[bytes] = []
        reader = read_in_thread(fifo, found)
        writer()
        reader.join(60)
        assert stat.S_ISFIFO(fifo.stat().st_mode)
        assert found[0] == b"x" or [
            b'"line": %d' % i in line for i, line in enumerate(found[0].splitlines(), 1)
        ] == [True, True]
    assert names(tmp_path) == ["fifo"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes devices")
def test_a_device_stays_a_device(tmp_path: Path) -> None:
    """One of this folder, with the numbers of the null device."""
    device = tmp_path / "null"
    try:
        os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        device.open("wb").close()
    except OSError:
        pytest.skip("devices cannot be made here")
    write(device, b"x")
    write_file(str(device), "x")
    answer(device)
    assert stat.S_ISCHR(device.stat().st_mode) and names(tmp_path) == ["null"]


def test_an_open_descriptor_is_written_where_it_is(tmp_path: Path) -> None:
    """`-o /dev/fd/3 3>> file`: neither replaced nor emptied."""
    file = tmp_path / "file"
    file.write_bytes(b"before ")
    inode = file.stat().st_ino
    with file.open("ab") as opened:
        path = Path(f"/dev/fd/{opened.fileno()}")
        assert is_stream(path) and not is_stdout(path)
        write(path, b"a")
        write_file(str(path), "b")
    assert file.read_bytes() == b"before ab" and file.stat().st_ino == inode
    assert not is_stream(file) and not is_stdout(file) and is_stdout(Path("-"))


def test_what_cannot_be_written_is_one_error(tmp_path: Path) -> None:
    for path in (tmp_path / "missing" / "file", tmp_path):
        with pytest.raises(FileSystemError, match="cannot write"):
            write(path, b"x")
    (tmp_path / "there").touch()
    with pytest.raises(FileSystemError, match="exists already"):
        write_file(str(tmp_path / "there"), "x")


@pytest.mark.parametrize(
    "record",
    ['{"line": 0, "key": null}', '{"line": true, "key": "x"}', '{"line": 3, "key": null}', "[]"],
)
def test_a_record_of_another_program_is_no_answer(tmp_path: Path, record: str) -> None:
    (tmp_path / "out").write_text(f"{record}\n")
    with pytest.raises(UsageError, match="not an answer to a line of this input"):
        answer(tmp_path / "out")
    assert (tmp_path / "out").read_text() == f"{record}\n"
