"""The table of parameters: every name is accepted by flags, variables, files and `/set`."""

import dataclasses

import click
import pytest
from click.testing import CliRunner

from swiftchat.chat import cli
from swiftchat.chat.options.chat_options import CHAT_OPTIONS, PARAMETERS, typed
from swiftchat.chat.options.option_files import load_config_file
from swiftchat.chat.options.parameter import ChoiceParameter, Parameter
from swiftchat.chat.options.user_files import config_path
from swiftchat.errors import UsageError
from tests.chat.slash.test_commands import Chat, chat

__all__ = ["chat"]

NAMES = [
    (parameter.name, name)
    for parameter in PARAMETERS.values()
    for name in (parameter.name, *parameter.aliases)
]
WRONG = {
    "temperature": "-1",
    "top_k": "-1",
    "top_p": "0",
    "min_p": "1.5",
    "repeat_penalty": "0",
    "presence_penalty": "nan",
    "frequency_penalty": "1e9",
    "seed": "-1",
    "max_tokens": "0",
    "logprobs": "51",
    "ctx_size": "0",
    "threads": "0",
    "top_p_decay": "0",
    "top_p_min": "2",
    "typical_p": "0",
    "top_n_sigma": "-1",
    "xtc_probability": "1.5",
    "xtc_threshold": "0",
    "repeat_last_n": "-2",
    "dry_multiplier": "-1",
    "dry_base": "0.5",
    "dry_allowed_length": "0",
    "no_repeat_ngram": "-1",
    "min_tokens": "-1",
    "reasoning_budget": "-1",
    "speculate": "fast",
    "loop_stop": "maybe",
    "speculate_tokens": "16",
    "overflow": "drop",
    "overflow_keep": "-1",
    "beams": "65",
    "length_penalty": "-11",
    "diversity_rate": "-1",
    "early_stopping": "soon",
}
VALUES = {
    "loop_stop": "off",
    "speculate": "ngram",
    "overflow": "sliding",
    "early_stopping": "never",
}
NUMBERS = [name for name, one in PARAMETERS.items() if isinstance(one, Parameter)]


def write_config(text: str) -> None:
    config_path().parent.mkdir(parents=True, exist_ok=True)
    config_path().write_text(text)


def usage_error(*args: str, **settings: object) -> str:
    """Return the error of a command line."""
    settings |= {"standalone_mode": False, "catch_exceptions": False}
    with pytest.raises(click.ClickException) as caught:
        CliRunner().invoke(cli.swiftchat, args, **settings)  # type: ignore[arg-type]
    return caught.value.format_message()


def test_ollamas_names_are_known() -> None:
    assert {"num_ctx", "num_predict", "temp", "top_p", "num_thread"} <= {name for _, name in NAMES}


@pytest.mark.parametrize(("option", "name"), NAMES)
def test_every_name_is_a_flag_a_variable_and_a_setting(
    chat: Chat, option: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (found,) = [one for one in CHAT_OPTIONS if f"--{name.replace('_', '-')}" in one.opts]
    assert found.name == option
    value = VALUES.get(option, 1)
    first, _, note = chat.send(f"/set {name} {value}").strip().partition("; ")
    assert first in (f"{option} = {value}", f"{option} = 4096")  # the fake engine's context
    assert bool(note) != PARAMETERS[option].is_sampled
    if option == "logprobs":
        return
    variable = f"SWIFTCHAT_{name.upper()}"
    monkeypatch.setenv(variable, "abc")
    assert f"{variable}: must be {PARAMETERS[option].rule}" in usage_error("-p", "x")
    write_config(f"{name} = {value!r}\n")
    assert load_config_file() == {option: value}


@pytest.mark.parametrize("option", PARAMETERS)
def test_wrong_values_say_the_range(chat: Chat, option: str) -> None:
    rule = PARAMETERS[option].rule
    for value in (WRONG[option], "abc", "1,5"):
        with pytest.raises(UsageError) as caught:
            chat.send(f"/set {option} {value}")
        assert caught.value.message == f"{option} must be {rule}, not {value!r}"
        flag = f"{PARAMETERS[option].flags[0]}={value}"
        message = usage_error(flag)
        assert f"must be {rule}, not {value!r}" in message
        assert not any(f"'{alias}'" in message for alias in PARAMETERS[option].flags[1:])


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("enable_thinking", "'enable_thinking' is not KEY=VALUE, such as enable_thinking=false"),
        ("a b=1", "'a b=1' is not KEY=VALUE"),
        ("messages=[]", "messages is set by the conversation"),
    ],
)
def test_wrong_arguments_of_the_template(argument: str, message: str) -> None:
    assert message in usage_error(f"--template-arg={argument}")
    with pytest.raises(UsageError, match=f"template_arg: {message}"):
        typed({"template_arg": [argument]})


def test_a_file_may_have_a_boolean() -> None:
    assert typed({"early_stopping": True}) == {"early_stopping": "true"}


@pytest.mark.parametrize("word", ["off", "default"])
@pytest.mark.parametrize("option", NUMBERS)
def test_off_and_default_unset_every_number(chat: Chat, option: str, word: str) -> None:
    before = chat.send(f"/set {option}")
    parameter = PARAMETERS[option]
    assert isinstance(parameter, Parameter)
    value = 7 if parameter.kind is int else 0.5 if 0.5 in parameter.range else 2
    chat.send(f"/set {option} {value}")
    assert chat.send(f"/set {option}") != before or option == "ctx_size"
    chat.send(f"/set {option} {word}")
    assert chat.send(f"/set {option}") == before


def test_off_is_a_choice_and_default_unsets_it(chat: Chat) -> None:
    assert "speculate          auto" in chat.send("/set speculate")
    assert chat.send("/set speculate off") == "speculate = off\n"
    assert chat.state.chat_model.params.speculate == "off"
    assert chat.send("/set speculate default") == "speculate = auto\n"
    assert chat.state.chat_model.params.speculate == "auto"


def test_off_unsets_options_of_the_command_line_too(chat: Chat) -> None:
    model = chat.state.chat_model
    model.config = dataclasses.replace(model.config, seed=7, max_tokens=3)
    chat.send("/set seed off")
    chat.send("/set max_tokens default")
    chat.send("q", "a longer answer")
    assert (model.params.seed, model.params.max_tokens) == (None, None)
    assert not {"seed", "max_tokens"} & chat.stored().settings.keys()
    assert chat.path()[1] == "a longer answer"


def test_stop_texts_and_the_system_prompt_are_unset(chat: Chat) -> None:
    chat.send('/set stop "a\\nb"')
    chat.send("/set stop END")
    assert chat.state.chat_model.stops == ("a\nb", "END")
    assert '"a\\nb" "END"' in chat.send("/set stop")
    chat.send("/set stop off")
    assert chat.state.chat_model.stops == ()
    chat.send("/set system Be brief.")
    chat.send("/set system off")
    assert not chat.state.conversation.system


def test_a_new_context_size_restarts_the_engine(chat: Chat) -> None:
    model = chat.state.chat_model
    chat.send("q", "a")
    chat.send("/set parameter num_ctx 512")
    assert chat.engine.config.ctx_size_tokens == 512
    num_starts = chat.engine.num_starts
    chat.send("/set num_ctx 512")
    assert chat.engine.num_starts == num_starts
    chat.send("more", "b")
    assert chat.path() == ["q", "a", "more", "b"]
    model.config = dataclasses.replace(model.config, connect="127.0.0.1:4000")
    with pytest.raises(UsageError, match="the remote engine"):
        chat.send("/set ctx_size 256")


def test_the_conversations_of_older_versions_keep_their_temperature(chat: Chat) -> None:
    chat.send("q", "a")
    old = chat.state.conversation
    chat.send("/clear")
    old.settings["temp"] = 0.25
    chat.state.autosave.store.save(old)
    chat.send(f"/resume {old.id}")
    assert chat.state.chat_model.params.temperature == 0.25


@pytest.mark.fault(45)
def test_errors_of_values_in_the_configuration_name_the_file() -> None:
    write_config("top_p = 7\n")
    with pytest.raises(UsageError) as caught:
        load_config_file()
    assert f"{config_path()}: top_p: must be a number above 0" in caught.value.message


def test_help_shows_choices_as_they_are_typed() -> None:
    shown = CliRunner().invoke(cli.swiftchat, ["chat", "--help"]).output
    for name in ("overflow", "speculate", "early_stopping"):
        one = PARAMETERS[name]
        assert isinstance(one, ChoiceParameter)
        assert f"{one.flags[0]} [{'|'.join(one.choices)}]" in shown
    assert "--tp N|auto" in shown and "--top-k N " in shown
