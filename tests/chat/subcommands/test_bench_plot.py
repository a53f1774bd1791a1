"""`swiftchat bench --plot`: bars on the terminal, and PNG files."""

import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from swiftchat.chat.subcommands.bench.command import bench
from swiftchat.chat.subcommands.bench.plot import draw
from swiftchat.errors import FileSystemError, SwiftchatError, UsageError
from tests.chat.subcommands.test_bench import SHORT, Engine
from tests.chat.subcommands.test_bench import engine as engine
from tests.support import fake_engine

RESULTS: dict[str, Any] = {
    "model": "m\x1b[31m $\\x$",
    "device": "cpu",
    "dtype": "bfloat16",
    "decode": [
        {"context": c, "batch": b, "decode_tps": s}
        for c, b, s in [(1000, 1, 40.0), (0, 1, 80.0), (0, 4, 160.0), (1000, 4, 120.0)]
    ],
}


def error_of(*args: str) -> SwiftchatError:
    error = CliRunner().invoke(bench, [*SHORT, *args]).exception
    assert isinstance(error, SwiftchatError), error
    return error


def test_bar_lengths_are_proportional_to_speed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "72")
    draw(RESULTS, "terminal")
    _, *rows = [line for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert [row.split()[:3] for row in rows] == [
        ["0", "1", "80.0"],
        ["1000", "1", "40.0"],
        ["0", "4", "160.0"],
        ["1000", "4", "120.0"],
    ]
    lengths = [row.count("█") for row in rows]
    assert lengths[2] > 40 and max(map(len, rows)) <= 72
    assert [length / lengths[2] for length in lengths] == pytest.approx(
        [0.5, 0.25, 1, 0.75], abs=0.03
    )


def test_png_file(tmp_path: Path) -> None:
    draw(RESULTS, str(tmp_path / "speed.png"))
    data = (tmp_path / "speed.png").read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n") and len(data) > 10_000


def test_plot_follows_the_table(engine: type[Engine], tmp_path: Path) -> None:
    folder = str(fake_engine.make_folder(tmp_path))
    result = CliRunner().invoke(bench, [*SHORT, "-m", folder, "--plot", "terminal"])
    assert result.exit_code == 0 and "ms/step" in result.stdout and "█" in result.stdout
    picture = tmp_path / "p.png"
    result = CliRunner().invoke(bench, [*SHORT, "-m", folder, "--json", "--plot", str(picture)])
    assert result.exit_code == 0 and result.stdout.startswith("{") and picture.stat().st_size


def test_invalid_plot_targets_fail_before_measuring(
    engine: type[Engine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "old.png").write_bytes(b"mine")
    assert isinstance(error_of("--plot", "speed.gif"), UsageError)
    assert isinstance(error_of("--plot", "terminal", "--json"), UsageError)
    assert isinstance(error_of("--plot", str(tmp_path / "old.png")), FileSystemError)
    assert isinstance(error_of("--plot", str(tmp_path / "no/new.png")), FileSystemError)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    error = error_of("--plot", str(tmp_path / "new.png"))
    assert isinstance(error, UsageError) and error.hint.startswith("pip install matplotlib")
    assert engine.started == [] and (tmp_path / "old.png").read_bytes() == b"mine"
