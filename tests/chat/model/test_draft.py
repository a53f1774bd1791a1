"""The draft model of `--draft`: its vocabulary must be the model's."""

import json
from pathlib import Path
from typing import Any

import pytest

from swiftchat.chat.model.draft import check_vocabulary, draft_kept, with_draft
from swiftchat.chat.options.config import ChatConfig
from swiftchat.errors import BadModelFile, ModelNotFound, UsageError
from tests.support import heads, tiny
from tests.support.chat_templates import tokenizer_json


def model(folder: Path, **tokenizer: Any) -> Path:
    """Make a model whose tokenizer is `tokenizer_json` with changes."""
    tiny.make("llama", folder)
    changed = {**tokenizer_json(), **tokenizer}
    (folder / "tokenizer.json").write_text(json.dumps(changed))
    return folder


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model(tmp_path_factory.mktemp("target"))


def test_a_draft_model_with_the_same_vocabulary(target: Path, tmp_path: Path) -> None:
    draft = model(tmp_path / "draft")
    config = with_draft(ChatConfig(model=str(target), draft=str(draft)), target)
    assert config.engine().draft == str(draft)
    assert with_draft(ChatConfig(), target) == ChatConfig()


@pytest.mark.fault(48)
def test_another_vocabulary_is_an_error_that_names_the_first_other_token(
    target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = tokenizer_json()["model"]
    vocab = dict(changed["vocab"])
    one, other = "a", "b"
    one_id = min(vocab[one], vocab[other])
    vocab[one], vocab[other] = vocab[other], vocab[one]
    draft = model(tmp_path / "draft", model={**changed, "vocab": vocab})
    with pytest.raises(UsageError) as caught:
        check_vocabulary(target, draft)
    assert "the draft model draft has another vocabulary than target" in caught.value.message
    assert f"token {one_id} is 'b', not 'a'" in caught.value.message
    assert caught.value.hint == "choose a smaller model of the same family"
    config = ChatConfig(draft=str(target), speculate="draft")
    assert draft_kept(config, target) == config
    assert draft_kept(config, draft) == ChatConfig()  # /model: the conversation goes on
    assert "speculation goes on without it" in capsys.readouterr().err


def test_options_that_contradict_a_draft_model() -> None:
    with pytest.raises(UsageError, match="--speculate draft needs a draft model"):
        ChatConfig(speculate="draft").check()
    with pytest.raises(UsageError, match="--draft and --dummy"):
        ChatConfig(draft="a", dummy="llama-3.1-8b").check()
    with pytest.raises(UsageError, match="a draft model needs a single device"):
        ChatConfig(draft="a", tp=2).check()


def test_a_draft_model_that_is_not_there(target: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound):
        with_draft(ChatConfig(draft=str(tmp_path / "none"), offline=True), target)


def test_prediction_heads_need_no_vocabulary(
    target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = heads.write_medusa(tmp_path / "heads", heads.medusa_tensors())
    config = with_draft(ChatConfig(draft=str(folder)), target)
    assert config.engine().draft == str(folder)
    assert draft_kept(config, target) == config
    tiny.make("llama", tmp_path / "wide", hidden_size=96)
    with pytest.raises(BadModelFile, match=r"expected \[96, 96\], found \[48, 48\]") as caught:
        with_draft(config, tmp_path / "wide")
    assert "another base model" in caught.value.hint
    assert draft_kept(config, tmp_path / "wide") == ChatConfig()
    assert "speculation goes on without it" in capsys.readouterr().err
