"""No option of any subcommand takes a number that the program cannot use."""

from collections.abc import Iterator

import click
import pytest

from swiftchat.chat import cli
from swiftchat.chat.options.duration import Duration
from swiftchat.chat.options.option_types import MAX_RANKS, Number, NumberOrAuto
from swiftchat.chat.options.parameter import ChoiceParameter
from swiftchat.chat.options.size import Size
from swiftchat.errors import UsageError
from swiftchat.weights.convert.convert import convert, estimate_conversion
from tests.support.zero_model import make_zero_model

HUGE = "9" * 400
BOUNDED = (click.IntRange, NumberOrAuto, Number, Size, Duration)


def options_of(command: click.Command, name: str) -> Iterator[tuple[str, click.Parameter]]:
    """Yield the parameters of a command and of its subcommands."""
    for param in command.params:
        yield f"{name} {param.opts[-1]}", param
    if isinstance(command, click.Group):
        context = click.Context(command)
        for inner_name in command.list_commands(context):
            inner = command.get_command(context, inner_name)
            assert inner is not None
            yield from options_of(inner, f"{name} {inner_name}")


OPTIONS = dict(options_of(cli.swiftchat, "swiftchat"))
NUMBERS = {
    name: param
    for name, param in OPTIONS.items()
    if isinstance(param.type, BOUNDED)
    and not isinstance(getattr(param.type, "_parameter", None), ChoiceParameter)
}


def test_every_number_has_bounds() -> None:
    unbounded = [
        name
        for name, param in OPTIONS.items()
        if param.type in (click.INT, click.FLOAT)
        or (isinstance(param.type, click.IntRange) and None in (param.type.min, param.type.max))
    ]
    assert unbounded == []
    assert {"swiftchat convert --tp", "swiftchat score --stride"} <= NUMBERS.keys()


@pytest.mark.parametrize("text", ["-1", HUGE, f"{HUGE}d", f"{HUGE}T", "nan", "inf", ""])
def test_values_out_of_bounds_are_refused(text: str) -> None:
    may_be_negative = {"repeat_last_n", "presence_penalty", "frequency_penalty", "length_penalty"}
    for name, param in NUMBERS.items():
        if text == "-1" and param.name in may_be_negative:
            continue
        with pytest.raises(click.BadParameter):
            param.type.convert(text, param, None)
            pytest.fail(f"{name} takes {text[:9]!r}")


@pytest.mark.parametrize("value", ["0", 0, -1, True, "x", 1025])
def test_a_number_of_ranks_is_checked_in_files_too(value: object) -> None:
    with pytest.raises(click.BadParameter, match="neither auto nor a number from 1 to 1024"):
        NumberOrAuto(1, MAX_RANKS).convert(value, None, None)


@pytest.mark.parametrize(
    "arguments", [("--tp", "0"), ("--tp", "-2"), ("--shard-size", "0"), ("--shard-size", "0GiB")]
)
def test_convert_writes_nothing_for_no_files(arguments: tuple[str, ...], tmp_path) -> None:
    source = make_zero_model(tmp_path / "in")
    command = ["convert", str(source), str(tmp_path / "out"), *arguments]
    with pytest.raises(click.BadParameter):
        cli.swiftchat.main(command, standalone_mode=False)
    options: dict[str, int] = {"tp": 0} if "--tp" in arguments else {"shard_size_bytes": 0}
    with pytest.raises(UsageError, match="cannot hold a model"):
        convert(source, tmp_path / "out", **options)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="cannot hold a model"):
        estimate_conversion(source, **options)  # type: ignore[arg-type]
    assert [file.name for file in tmp_path.iterdir() if file.is_dir()] == ["in"]
