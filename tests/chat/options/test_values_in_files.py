"""Values that users write in files: of any type, size and depth, they are values or errors of ours.

Errors have the file, the key and the value; a value that is no number is no number anywhere.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from swiftchat.chat.options.chat_options import CHAT_OPTIONS, FILE_NAMES, saved_settings
from swiftchat.chat.options.option_files import load_config_file, parse_toml
from swiftchat.chat.options.project import FILE_NAME, find_project
from swiftchat.chat.options.user_files import config_path
from swiftchat.chat.subcommands.batch.answers import error_record
from swiftchat.chat.subcommands.batch.lines import Line, parse_request
from swiftchat.errors import UsageError
from tests.support.program import Program, assert_error
from tests.support.roles import parse_role

MANY = "9" * 400
TOO_MANY = "9" * 5000
LONGEST_ERROR = 400  # characters


def config_of(text: str) -> dict[str, Any]:
    config_path().parent.mkdir(parents=True, exist_ok=True)
    config_path().write_text(text)
    return load_config_file()


def role_of(text: str) -> dict[str, Any]:
    return parse_role(f"---\n{text}\n---\nBe brief.", "r.md").settings


def line_of(text: str) -> dict[str, Any]:
    key, _, value = text.partition(": ")
    return parse_request(Line(1, f'{{"prompt": "a", "{key}": {value}}}'), None).options


def refused(read: Callable[[str], object], text: str, *parts: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(text)
    message = caught.value.message
    assert len(message) <= LONGEST_ERROR and caught.value.exit_code == 2
    for part in parts:
        assert part in message, message


@pytest.mark.parametrize("key", ["seed", "max_tokens", "temperature"])
@pytest.mark.parametrize("value", [MANY, f"-{MANY}", "true", "[1]", '"x"', f'"{TOO_MANY}"'])
def test_no_file_has_another_value_as_a_number(key: str, value: str) -> None:
    shown = {"[1]": "a list"}.get(value, value.strip('"')[:20])
    refused(config_of, f"{key} = {value}", str(config_path()), f"{key}: must be a", shown)
    refused(role_of, f"{key}: {value}", "r.md", f"{key}: must be a", shown)
    refused(line_of, f"{key}: {value}", f"{key}: must be a", shown)
    found, problems = saved_settings({key: json.loads(value)})
    assert not found and len(problems) == 1 and len(problems[0]) <= LONGEST_ERROR


@pytest.mark.parametrize("value", [TOO_MANY, f"0x{TOO_MANY}", "1e400", "inf", "nan"])
def test_numbers_beyond_all_bounds_in_toml(value: str, tmp_path: Path) -> None:
    for key in ("pp", "seed", "swap_size", "temperature", "tp", "max_tool_rounds"):
        refused(config_of, f"{key} = {value}", str(config_path()))
    (tmp_path / FILE_NAME).write_text(f"seed = {value}")
    project = find_project(tmp_path, tmp_path)
    assert project is not None and project.values == {}
    assert len(project.notices) == 1 and len(project.notices[0]) <= LONGEST_ERROR


@pytest.mark.parametrize("value", [TOO_MANY, "1e400", "NaN", "-Infinity", "[" * 400 + "]" * 400])
def test_a_batch_goes_on_after_any_line(value: str) -> None:
    for text in (f'{{"prompt": "a", "seed": {value}}}', f'{{"prompt": 1, "id": {value}}}'):
        line = Line(3, text)
        with pytest.raises(UsageError) as caught:
            parse_request(line, None)
        record = json.dumps(error_record(line, caught.value), allow_nan=False)
        assert json.loads(record)["line"] == 3


def test_numbers_and_truth_are_no_texts() -> None:
    texts = [
        option.name
        for option in CHAT_OPTIONS
        if option.name in FILE_NAMES and option.type.name in ("text", "path", "choice")
    ]
    assert {"system_file", "model", "token_file", "device", "theme"} <= set(texts)
    for name in texts:
        for value in ("0", "1.5", "true", "1979-05-27", "{a = 1}", "[1]", "[['x']]"):
            refused(config_of, f"{name} = {value}", str(config_path()), f"{name}: must be a")


def test_flags_are_true_or_false() -> None:
    for value in ("1", "0.0", "[]", "'maybe'"):
        refused(config_of, f"raw = {value}", str(config_path()), "raw")
    assert config_of("raw = true\nquiet = 'yes'") == {"raw": True, "quiet": True}
    assert role_of("raw: on\nquiet: no\naccessible: 1") == {
        "raw": True,
        "quiet": False,
        "accessible": True,
    }


@pytest.mark.parametrize(
    ("header", "settings"),
    [
        ("think: on", {"think": "on"}),
        ("model: 3.10", {"model": "3.10"}),
        ("system: 2001-12-14", {}),
        ("stop: [1:30, no, 0x10]", {"stop": ("1:30", "no", "0x10")}),
        ("seed: !!str 7", {"seed": 7}),
        ("seed: !!bool 7", {"seed": 7}),
        ("temperature: &t 0.5\ntop_p: *t", {"temperature": 0.5, "top_p": 0.5}),
        ("early_stopping: true\nbeams: 2", {"early_stopping": "true", "beams": 2}),
        ("", {}),
        ("~", {}),
    ],
)
def test_values_of_a_role_are_the_texts_in_it(header: str, settings: dict[str, Any]) -> None:
    text = f"---\n{header}\n---\n"
    assert parse_role(text, "r.md").settings == settings


@pytest.mark.parametrize(
    ("header", "part"),
    [
        ("raw: !!bool x", "raw: 'x' is not a valid boolean"),
        ("seed: !!timestamp x", "seed: must be"),
        ("seed: !!int 'x'", "seed: must be"),
        ("seed: !!python/object:os.system x", "seed: must be"),
        ("seed: 1" + ":1" * 3000, "seed: must be"),
        ("seed: 0x" + "f" * 6000, "seed: must be"),
        ("seed: 0b" + "1" * 60_000, "seed: must be"),
        (f"seed: {TOO_MANY}", "seed: must be"),
        ("temperature: .inf", "temperature: must be"),
        ("base: &b\n  seed: 1\n<<: *b", "'base' is neither"),
        ("<<: {seed: 1}", "'<<' is neither"),
        ("seed: 1\nseed: 2", "'seed' is set twice"),
        ("temp: 1\ntemperature: 2", "temperature is set twice"),
        ("seed:", "'seed' has no value"),
        ("stop: [~]", "'stop' has no value"),
        ("? [a]\n: 1", "a name of an option"),
        ("stop: &x [*x]", "'stop' is neither"),
        ("stop: " + "[" * 5000, "nested too deeply"),
        ("stop: " + "[" * 200 + "]" * 200, "'stop' is neither"),
        (f"{MANY}: 1", "unknown option '999"),
        (f"variables: {{{MANY}: 1}}", "cannot name a variable"),
    ],
)
def test_an_invalid_value_of_a_role_is_named(header: str, part: str) -> None:
    refused(role_of, header, "r.md", part)


@pytest.mark.parametrize("depth", [40, 200, 400, 3000])
def test_a_file_that_is_nested_deeply_is_named(depth: int) -> None:
    for begin, middle, end in (("[", "", "]"), ("{a=", "1", "}")):
        value = begin * depth + middle + end * depth
        for key in ("temperature", "colors", "mcp", "stop", "system"):
            refused(config_of, f"{key} = {value}", str(config_path()))


def test_a_key_of_many_parts_takes_no_memory() -> None:
    for part in ("a", '"a b"', '"\\""', "'\"'", "-", "a \t"):
        text = ".".join([part] * 100_000)
        for toml in (f"{text} = 1", f"[{text}]", f"x = 1\nb={{{text}=1}}"):
            with pytest.raises(ValueError, match="64 parts"):
                parse_toml(toml)
    text = " ".join(f"{i}.5, a.b.c." for i in range(300)) + ". . ." * 100 + "'" * 2 + "x" * 100_000
    assert parse_toml(f'system = """{text}"""') == {"system": text}


def test_a_refused_value_of_a_flag_is_short(program: Program) -> None:
    for option, value in (("--seed", MANY), ("--pp", TOO_MANY), ("--swap-size", MANY)):
        error, _ = assert_error(program.run("-p", "x", option, value), 2, option, "999…")
        assert len(error) <= LONGEST_ERROR


def test_the_hint_of_a_broken_configuration_is_true(program: Program) -> None:
    config_path().parent.mkdir(parents=True, exist_ok=True)
    config_path().write_text("sed = 1")
    done = program.run("config", "path")
    assert done.returncode == 0 and b"did you mean seed?" in done.stderr
    config_path().write_text("temperature = 'hot'")
    _, hint = assert_error(program.run("list"), 2, str(config_path()), "temperature", "'hot'")
    found = re.match(r"hint: swiftchat (.*?) explains", hint)
    assert found and program.run(*found[1].split()).returncode == 0
