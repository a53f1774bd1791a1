"""Plot of tokens/s against context length, on the terminal or as a PNG file."""

from pathlib import Path
from typing import Any

from swiftchat.errors import FileSystemError, UsageError

TERMINAL = "terminal"


def check_target(target: str) -> None:
    """Raise an error if the plot cannot be written to `target`; call it before measuring."""
    if target == TERMINAL:
        return
    path = Path(target)
    if path.suffix.lower() != ".png":
        raise UsageError(f"--plot must be {TERMINAL} or FILE.png, not {target!r}")
    if path.exists():
        raise FileSystemError(f"{target} exists already", "choose another name")
    if not path.absolute().parent.is_dir():
        raise FileSystemError(f"the folder {path.parent} does not exist", f"mkdir -p {path.parent}")
    try:
        import matplotlib.figure  # noqa: F401 (checks that it is installed)
    except ImportError:
        raise UsageError(
            "--plot FILE.png needs matplotlib",
            f"pip install matplotlib, or use --plot {TERMINAL}",
        ) from None


def draw(results: dict[str, Any], target: str) -> None:
    """Draw the results of `measure` to a target that `check_target` accepted."""
    lines: dict[int, list[tuple[int, float]]] = {}  # (context, tokens/s) by batch
    for row in results["decode"]:
        lines.setdefault(row["batch"], []).append((row["context"], row["decode_tps"]))
    for points in lines.values():
        points.sort()
    title = f"{results['model']} · {results['device']} · {results['dtype']}"
    if target == TERMINAL:
        _print_bars(lines)
    else:
        _write_png(lines, title, Path(target))


def _print_bars(lines: dict[int, list[tuple[int, float]]]) -> None:
    from rich.bar import Bar
    from rich.console import Console
    from rich.table import Table

    most = max(speed for points in lines.values() for _, speed in points)
    table = Table(box=None, padding=(0, 1, 0, 0), expand=True)
    for name in ("context", "batch", "tok/s"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", ratio=1)
    for batch, points in sorted(lines.items()):
        for i, (context, speed) in enumerate(points):
            last = i == len(points) - 1
            bar = Bar(most, 0, speed, color="cyan")
            table.add_row(str(context), str(batch), f"{speed:.1f}", bar, end_section=last)
    Console(highlight=False).print(table)


def _write_png(lines: dict[int, list[tuple[int, float]]], title: str, path: Path) -> None:
    # Not pyplot: it selects a GUI backend.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    for batch, points in sorted(lines.items()):
        contexts, speeds = zip(*points, strict=True)
        axes.plot(contexts, speeds, marker="o", label=f"batch {batch}")
    axes.set(xlabel="context (tokens)", ylabel="tokens/s", ylim=(0, None))
    shown = "".join(c if c.isprintable() else "?" for c in title)
    axes.set_title(shown, parse_math=False)  # a $ in a name does not begin a formula
    axes.grid(alpha=0.3)
    axes.legend()
    try:
        figure.savefig(path, dpi=144)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise FileSystemError(f"cannot write {path}: {error.strerror}") from error
