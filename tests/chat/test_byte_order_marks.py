"""Text files of users may begin with a byte order mark."""

import json
from pathlib import Path

import pytest

from swiftchat.chat.attachments.folder import _rules_of
from swiftchat.chat.attachments.user_text import read_text, text_or_file
from swiftchat.chat.endpoint.token import find_token
from swiftchat.chat.model.output_format import chosen_format, schema_format
from swiftchat.chat.model.template_choice import _read
from swiftchat.chat.options.config import ChatConfig
from swiftchat.chat.subcommands.batch.lines import parse_request, split_lines
from swiftchat.chat.tools.servers import _read as read_servers

MARK = b"\xef\xbb\xbf"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "file"


def marked(file: Path, text: str) -> str:
    file.write_bytes(MARK + text.encode())
    return str(file)


def test_schemas_grammars_and_batches(file: Path) -> None:
    assert schema_format(marked(file, '{"type": "null"}')).schema == {"type": "null"}
    for grammar in ('root ::= "a"', 'start: "a"'):
        assert chosen_format(ChatConfig(grammar=marked(file, grammar))) is not None
    line, *_ = split_lines(read_text(marked(file, '{"prompt": "Hi", "max_tokens": 4}\n')).text)
    assert parse_request(line, None).options == {"max_tokens": 4}
    assert text_or_file(marked(file, "a"))[0] == "a"


def test_tokens_templates_servers_and_ignored_files(file: Path) -> None:
    assert find_token(marked(file, "0123456789abcdef"), {}).text == "0123456789abcdef"
    marked(file, "{{ messages }}")
    assert _read(file) == "{{ messages }}"
    marked(file, json.dumps({"mcpServers": {"a": {"command": "b"}}}))
    assert [spec.name for spec in read_servers(file, "file")] == ["a"]
    marked(file.parent / ".gitignore", "build\n")
    ((_, rules),) = _rules_of(file.parent)
    assert rules.match_file("build")
