"""`/v1/embeddings` with the `openai` client, against transformers on the same weights."""

import base64
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import openai
import pytest
import torch
import transformers

from tests.support.remote_engine import chat_model_folder
from tests.support.serve_processes import serve_process

TOKEN = "0123456789abcdef"
TEXTS = ["The sky is blue.", "Brot"]
IDS = [list(text.encode()) for text in TEXTS]  # the tokenizer has a token for each byte


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny"
    path.mkdir()
    return chat_model_folder(path)


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[openai.OpenAI]:
    options = ("--device", "cpu", "--dtype", "float32", "--threads", "1")
    with TemporaryDirectory(prefix="run-") as runtime:
        environ = {"SWIFTCHAT_API_TOKEN": TOKEN, "XDG_RUNTIME_DIR": runtime}
        arguments = (str(folder), *options, "--openai", "127.0.0.1:0")
        with serve_process(*arguments, **environ) as process:
            process.wait_for("OpenAI-compatible API")
            url = process.wait_for(r"(http://\S+)")
            yield openai.OpenAI(base_url=url, api_key=TOKEN, max_retries=0)


def create(client: openai.OpenAI, given: Any, **options: Any) -> Any:
    return client.embeddings.create(model="tiny", input=given, **options)


@torch.inference_mode()
def assert_embeds(folder: Path, found: Any, ids: list[list[int]], pooling: str = "mean") -> None:
    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32)
    assert found.model == "tiny" and [one.index for one in found.data] == [*range(len(ids))]
    num_tokens = sum(map(len, ids))
    assert (found.usage.prompt_tokens, found.usage.total_tokens) == (num_tokens, num_tokens)
    for one, prompt in zip(found.data, ids, strict=True):
        hidden = model(torch.tensor([prompt])).last_hidden_state[0]
        reference = hidden.mean(0) if pooling == "mean" else hidden[-1]
        reference = reference / reference.norm()
        values = one.embedding
        if isinstance(values, str):
            values = np.frombuffer(base64.b64decode(values), np.float32).copy()
        assert (torch.as_tensor(values) - reference).abs().max() < 1e-5


def test_texts_and_token_ids_equal_transformers(client: openai.OpenAI, folder: Path) -> None:
    """The client asks for base64 by itself."""
    assert_embeds(folder, create(client, TEXTS[0]), IDS[:1])
    assert_embeds(folder, create(client, TEXTS, encoding_format="float"), IDS)
    assert_embeds(folder, create(client, TEXTS, encoding_format="base64"), IDS)
    assert_embeds(folder, create(client, IDS[0]), IDS[:1])
    assert_embeds(folder, create(client, IDS, extra_body={"pooling": "last"}), IDS, "last")


def test_dimensions_are_those_of_the_model(client: openai.OpenAI) -> None:
    width = len(create(client, "x").data[0].embedding)
    assert len(create(client, "x", dimensions=width).data[0].embedding) == width
    with pytest.raises(openai.BadRequestError, match=f"have {width} dimensions") as caught:
        create(client, "x", dimensions=width // 2)
    assert caught.value.param == "dimensions"


@pytest.mark.parametrize(
    ("given", "message", "code"),
    [
        ("", "the input is empty", None),
        (["x", ""], "input 1 is empty", None),
        ([], "between 1 and 2048 texts", None),
        (["x"] * 2049, "between 1 and 2048 texts", None),
        ([[]], "the input is empty", None),
        ([300], "token id 300 is outside the vocabulary", None),
        (["x", "y" * 257], "input 1 has 257 tokens, the context 256", "context_length_exceeded"),
        ([["x"]], "input", "invalid_value"),
    ],
)
def test_inputs_that_have_no_embedding(
    client: openai.OpenAI, given: Any, message: str, code: str | None
) -> None:
    with pytest.raises(openai.BadRequestError, match=message) as caught:
        create(client, given)
    assert caught.value.code == code
