"""The model and the template of an imported conversation: GGUF files of the hub."""

from pathlib import Path

import pytest

from swiftchat.chat.options.imported_settings import imported_settings
from swiftchat.weights.store import Store
from tests.support.gguf import tiny as tiny_gguf
from tests.support.tiny_llama import tiny_llama


@pytest.fixture
def store(tmp_path: Path) -> Store:
    folder = tmp_path / "hub" / "models--owner--model" / "snapshots" / ("a" * 40)
    folder.mkdir(parents=True)
    templates = {
        "tokenizer.chat_template": "{{ messages }}",
        "tokenizer.chat_template.formal": "{{ messages }}!",
    }
    for kind in ("Q4_K_M", "Q8_0"):
        tiny_gguf.write(folder / f"m-{kind}.gguf", tiny_llama(), metadata=templates)
    return Store(tmp_path / "models", tmp_path / "cache", tmp_path / "hub")


def test_a_gguf_model_and_its_template_may_be_set(store: Store) -> None:
    settings = {"model": "owner/model:Q8_0", "template": "formal"}
    assert imported_settings(settings, store) == (settings, [])


@pytest.mark.parametrize("model", ["owner/model", "owner/model:BF16"])
def test_a_name_of_several_or_no_models_is_left_out(model: str, store: Store) -> None:
    found, left_out = imported_settings({"model": model, "template": "formal"}, store)
    assert found == {} and len(left_out) == 2


def test_the_path_of_a_gguf_file_is_left_out(store: Store) -> None:
    path = store.find("owner/model:Q8_0")
    found, left_out = imported_settings({"model": str(path)}, store)
    assert found == {} and len(left_out) == 1


def test_a_folder_of_knowledge_is_left_out(store: Store) -> None:
    settings = {"knowledge": "/home/me", "knowledge_model": "owner/model:Q8_0", "top_k": 3}
    found, left_out = imported_settings(settings, store)
    assert found == {"top_k": 3} and len(left_out) == 2
