"""Texts that stand for tokens, and the flags, files and commands that set them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from swiftchat.chat.options.chat_options import typed
from swiftchat.chat.options.config import ChatConfig
from swiftchat.chat.options.token_texts import TokenTexts, parse_bias
from swiftchat.errors import UsageError
from swiftchat.tokenizer import Tokenizer
from tests.chat.slash.test_commands import Chat, chat
from tests.support import fake_engine
from tests.support.roles import parse_role

__all__ = ["chat"]

NO_TEXTS = ChatConfig().texts({})


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> TokenTexts:
    """Tokens are bytes, `he` (258) and ` h` (259)."""
    folder = fake_engine.make_folder(tmp_path_factory.mktemp("model"), merges=("h e", "Ġ h"))
    return TokenTexts(Tokenizer.load(folder))


def test_a_bias_changes_the_single_tokens_with_and_without_a_space(tokens: TokenTexts) -> None:
    found = tokens.parameters(NO_TEXTS | {"logit_bias": ("h=2.5", "he=-100", "==1")})
    assert found["logit_bias"] == ((ord("h"), 2.5), (259, 2.5), (258, -100.0), (ord("="), 1.0))


def test_a_biased_text_of_several_tokens_is_an_error(tokens: TokenTexts) -> None:
    with pytest.raises(UsageError, match=r"--logit-bias: 'hey' is 2 tokens, not one"):
        tokens.parameters(NO_TEXTS | {"logit_bias": ("hey=1",)})


def test_a_banned_text_has_its_usual_tokens(tokens: TokenTexts) -> None:
    found = tokens.parameters(NO_TEXTS | {"ban": ("hey", "h")})["bad_words"]
    assert set(found) == {(258, ord("y")), (ord(" "), 258, ord("y")), (ord("h"),), (259,)}


def test_breakers_are_all_tokens_that_contain_a_text(tokens: TokenTexts) -> None:
    found = tokens.parameters(NO_TEXTS | {"dry_breaker": ("h",), "top_p_reset": ("e", ".")})
    assert found["dry_breaker_ids"] == (ord("h"), 258, 259)
    assert found["top_p_reset_ids"] == (ord("."), ord("e"), 258)
    usual = tokens.parameters(NO_TEXTS)["dry_breaker_ids"]
    assert set(usual) == set(b'\n:"*')
    assert tokens.parameters(NO_TEXTS | {"dry_breaker": ("none",)})["dry_breaker_ids"] == ()


@pytest.mark.parametrize("text", ["yes", "=1", "yes=", "yes=much", "yes=nan", "yes=101"])
def test_an_invalid_bias_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError, match=r"is not TEXT=NUMBER with a number between -100 and 100"):
        parse_bias(text)
    assert parse_bias("a=b=-3") == ("a=b", -3.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ban": ("x",), "logit_bias": ("x=5",)}, "--ban and --logit-bias both have 'x'"),
        ({"logit_bias": ("x=5", "x=3")}, "--logit-bias has 'x' twice"),
        ({"ban": ("",)}, "a --ban text is empty"),
        ({"dry_breaker": ("",)}, "a --dry-breaker text is empty"),
        ({"min_tokens": 9, "max_tokens": 3}, "min_tokens 9 is above max_tokens 3"),
        (
            {"top_p": 0.5, "top_p_decay": 0.9, "top_p_min": 0.8},
            "top_p_min 0.8 is above top_p 0.5",
        ),
    ],
)
def test_contradictory_options_name_both(options: dict, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        ChatConfig(**options).check()
    assert caught.value.message == message


def test_texts_are_set_and_unset_at_the_prompt(chat: Chat) -> None:
    model = chat.state.chat_model
    assert chat.send("/set ban foo") == 'ban = "foo"\n'
    assert chat.send('/set ban "a\\nb"') == 'ban = "foo" "a\\nb"\n'
    assert (ord("f"), ord("o"), ord("o")) in model.params.bad_words
    assert chat.send("/set logit_bias x=4") == 'logit_bias = "x=4"\n'
    assert model.params.logit_bias == ((ord("x"), 4.0),)
    with pytest.raises(UsageError, match="is 3 tokens"):
        chat.send("/set logit_bias bar=1")
    with pytest.raises(UsageError, match="both have 'x'"):
        chat.send("/set ban x")
    assert chat.send("/set logit_bias") == 'logit_bias         "x=4"\n'
    chat.send("/set ban off")
    assert model.params.bad_words == ()


def test_a_conversation_keeps_its_texts_but_no_ids(chat: Chat) -> None:
    chat.send("/set ban foo")
    chat.send("/set stop END")
    chat.send("q", "a")
    stored = chat.stored()
    assert stored.settings["ban"] == ["foo"] and stored.settings["stop"] == ["END"]
    assert "bad_words" not in stored.messages[1].params
    chat.send("/clear")
    chat.send("/set ban off")
    chat.send(f"/resume {stored.id}")
    assert chat.state.chat_model.stops == ("END",)
    assert chat.state.chat_model.params.bad_words


def test_texts_in_roles_and_files_are_lists_or_one_text() -> None:
    role = parse_role("---\nban: [a, b]\nstop: END\n---\nBe brief.", "role.md")
    assert typed(role.settings) == {"ban": ("a", "b"), "stop": ("END",)}
    with pytest.raises(UsageError, match="top_k: must be a whole number"):
        parse_role("---\ntop_k: [1]\n---\n", "role.md")


def test_flags_variables_and_the_configuration_file(tmp_path: Path) -> None:
    """The last token of each answer is decided by the options alone."""
    folder = fake_engine.make_folder(tmp_path / "model")
    script = Path(fake_engine.__file__)
    command = [sys.executable, str(script), str(folder), json.dumps(["x"]), "-p", "q", "--json"]

    def params(*args: str, **variables: str) -> dict:
        import os

        done = subprocess.run(
            [*command, *args], capture_output=True, env={**os.environ, **variables}, check=True
        )
        return json.loads(done.stdout)["params"]

    assert params("--ban", "a", "--ban", "b", "--min-tokens", "2")["min_tokens"] == 2
    assert params("--ban", "a", "--ban", "b")["ban"] == ["a", "b"]
    assert params(SWIFTCHAT_BAN="a b\nc")["ban"] == ["a b", "c"]
    assert params(SWIFTCHAT_TYP_P="0.5")["typical_p"] == 0.5


def test_config_show_prints_texts_between_quotes(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "swiftchat.chat", "--ban", "a b", "--ban", 'c"']
    done = subprocess.run([*command, "config", "show"], capture_output=True, text=True, check=True)
    values = {line.split()[0]: line.split(maxsplit=1)[1] for line in done.stdout.splitlines()}
    assert values["ban"].split() == ['"a', 'b"', '"c\\""', "flag"]
    assert values["stop"].split() == ["–", "default"]
