"""The chat template of a model: its own, that of its family, a built-in one, a file."""

import json
from pathlib import Path

import pytest

from swiftchat.chat.options.chat_options import CONFIG_NAMES
from tests.support import fake_engine
from tests.support.in_process import Program, failure


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    return Program(fake_engine.make_folder(tmp_path / "model"), monkeypatch)


def test_no_template_begins_as_the_post_processor_says(program: Program) -> None:
    """The text is continued, so no end token follows."""
    path = program.folder / "tokenizer.json"
    spec = json.loads(path.read_text())
    spec["post_processor"] = {
        "type": "RobertaProcessing",
        "cls": ["<|im_start|>", fake_engine.START_ID],
        "sep": ["<|im_end|>", fake_engine.END_ID],
        "trim_offsets": True,
        "add_prefix_space": False,
    }
    path.write_text(json.dumps(spec))
    program.run("--no-template", "-p", "Once")
    assert program.engine.prompt_text() == "<|im_start|>Once"


PROMPT = "Q: x\nA: "
SOURCE = "{% for m in messages %}Q: {{ m.content }}\n{% endfor %}A: "


def test_a_template_from_a_file_or_by_name(program: Program, tmp_path: Path) -> None:
    (tmp_path / "own.jinja").write_text(SOURCE)
    program.run("--template", str(tmp_path / "own.jinja"), "-p", "x")
    assert program.engine.prompt_text() == PROMPT
    program.engine.answers = [{"text": "Fine.\nUSER: and then"}]
    result = program.run("--template", "vicuna", "-p", "x")
    assert (
        program.engine.prompt_text().endswith(" USER: x ASSISTANT:") and result.stdout == "Fine.\n"
    )


def test_a_template_from_the_configuration(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own.jinja").write_text(SOURCE)
    monkeypatch.setenv("SWIFTCHAT_TEMPLATE", str(tmp_path / "own.jinja"))
    program.run("-p", "x")
    assert program.engine.prompt_text() == PROMPT
    assert "template" in CONFIG_NAMES


def test_a_model_without_a_template_uses_that_of_its_family(
    tmp_path: Path, program: Program
) -> None:
    fake_engine.make_folder(program.folder, template=None)
    program.run("-p", "x")
    assert program.engine.prompt_text() == (
        "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n"
    )
    spec = json.loads((program.folder / "tokenizer.json").read_text())
    spec["added_tokens"][0]["content"] = "<|other|>"
    (program.folder / "tokenizer.json").write_text(json.dumps(spec))
    error = failure(program, "-p", "x")
    assert error.exit_code == 7 and "--template" in error.hint and "chatml" in error.hint
    program.run("--template", "alpaca", "-p", "x")
    assert program.engine.prompt_text().endswith("### Instruction:\nx\n\n### Response:\n")
    program.engine.answers = [{"text": "y"}]
    assert program.run("--no-template", "-p", "x").stdout == "y\n"


def test_one_of_several_templates_is_chosen_by_name(program: Program) -> None:
    file = program.folder / "tokenizer_config.json"
    config = json.loads(file.read_text())
    config["chat_template"] = [
        {"name": "default", "template": fake_engine.TEMPLATE},
        {"name": "qa", "template": SOURCE},
    ]
    file.write_text(json.dumps(config))
    program.run("--template", "qa", "-p", "x")
    assert program.engine.prompt_text() == PROMPT
    program.engine.answers = [{"text": "y"}]
    program.run("-p", "x")
    assert program.engine.prompt_text().startswith("<|im_start|>user")


def test_invalid_templates_raise_an_error(program: Program, tmp_path: Path) -> None:
    broken, binary, long = (tmp_path / name for name in ("a.jinja", "b.jinja", "c.jinja"))
    broken.write_text("{% for %}")
    binary.write_bytes(b"\xff")
    long.write_text("x" * (1 << 21))
    for name, code in (
        ("no-such-name", 2),
        (str(tmp_path / "none.jinja"), 8),
        (str(tmp_path), 8),
        (str(broken), 7),
        (str(binary), 7),
        (str(long), 7),
    ):
        assert failure(program, "--template", name, "-p", "x").exit_code == code, name
    assert "chatml" in failure(program, "--template", "no-such-name", "-p", "x").hint
    assert failure(program, "--template", "chatml", "--no-template", "-p", "x").exit_code == 2
