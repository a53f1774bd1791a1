"""Answers with LoRA adapters: by the name of the model, or by a field."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.chat.endpoint.test_http import Served, serving
from tests.support import adapter_files
from tests.support.cases import each_case
from tests.support.fake_engine import FakeEngine, make_folder
from tests.support.remote_engine import chat_model_folder
from tests.support.serve_processes import serve_process, swiftchat

SHAPE = {
    name: adapter_files.CONFIG_JSON[name]
    for name in ("hidden_size", "intermediate_size", "num_attention_heads")
}


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    one, two = (adapter_files.write_peft(tmp_path / name) for name in ("one", "two"))
    folder = make_folder(tmp_path / "model", **SHAPE)
    with serving(folder, *["an answer"] * 30, lora=(f"{one}=0.5", str(two))) as served:
        yield served


def used(served: Served) -> list[tuple[str, float]]:
    """Return the adapters of the last answer by the names of their folders."""
    tuning = served.engine.tunings[-1]
    return [] if tuning is None else [(Path(p).name, scale) for p, scale in tuning.adapters]


@each_case(
    ("fields", "expected"),
    [
        ({}, []),
        ({"model": "model:one"}, [("one", 0.5)]),
        ({"model": "model:two"}, [("two", 1.0)]),
        ({"lora": "one"}, [("one", 0.5)]),
        ({"lora": "one=2"}, [("one", 2.0)]),
        ({"lora": ["two=-1", "one"]}, [("two", -1.0), ("one", 0.5)]),
        ({"lora": [{"id": 1, "scale": 0.25}, {"id": 0}]}, [("two", 0.25), ("one", 1.0)]),
        ({"lora": []}, []),
        ({"lora": [], "model": "model:one"}, [("one", 0.5)]),
    ],
)
def test_which_adapters_an_answer_has(
    fields: dict[str, Any], expected: list[tuple[str, float]], served: Served
) -> None:
    messages = [{"role": "user", "content": "hi"}]
    for path, given in (
        ("chat/completions", {"messages": messages}),
        ("completions", {"prompt": "a"}),
    ):
        status, found = served.request(f"/v1/{path}", {"model": "model", **given, **fields})
        assert status == 200, found
        assert found["model"] == fields.get("model", "model")
        assert used(served) == expected


@each_case(
    ("fields", "status", "param"),
    [
        ({"model": "model:three"}, 404, "model"),
        ({"model": "other:one"}, 404, "model"),
        ({"model": "one"}, 404, "model"),
        ({"lora": "three"}, 400, "lora"),
        ({"lora": "one=5000"}, 400, "lora"),
        ({"lora": [{"id": 2}]}, 400, "lora"),
        ({"lora": [{"id": -1}]}, 400, "lora"),
        ({"lora": "one", "model": "model:two"}, 400, "lora"),
    ],
)
def test_unknown_adapters(fields: dict[str, Any], status: int, param: str, served: Served) -> None:
    messages = [{"role": "user", "content": "hi"}]
    for path, given in (
        ("chat/completions", {"messages": messages}),
        ("embeddings", {"input": "a"}),
    ):
        found = served.request(f"/v1/{path}", {"model": "model", **given, **fields})
        assert (found[0], found[1]["error"]["param"]) == (status, param)


def test_models_with_adapters_are_listed(served: Served) -> None:
    models = served.request("/v1/models")[1]["data"]
    assert [(one["id"], one.get("parent")) for one in models] == [
        ("model", None),
        ("model:one", "model"),
        ("model:two", "model"),
    ]
    assert served.request("/v1/models/model:two")[1]["parent"] == "model"
    assert served.request("/v1/models/model:three")[0] == 404


def test_a_server_with_an_adapter(tmp_path: Path) -> None:
    """Its answers are those of the model with the adapter, but for embeddings."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    chat_model_folder(folder)
    config = json.loads((folder / "config.json").read_text())
    width, layers = config["hidden_size"], config["num_hidden_layers"]
    generator = np.random.default_rng(1)
    shapes = {"A": (3, width), "B": (config["intermediate_size"], 3)}
    modules = [f"{adapter_files.PREFIX}model.layers.{i}.mlp.up_proj" for i in range(layers)]
    tensors = {
        f"{module}.lora_{part}.weight": generator.standard_normal(shape, np.float32)
        for module in modules
        for part, shape in shapes.items()
    }
    adapter = adapter_files.write_peft(tmp_path / "odd", tensors, {"target_modules": ["up_proj"]})
    options = ("--device", "cpu", "--dtype", "float32", "--threads", "1")
    question = ("-p", "hello", "--temp", "0", "-n", "8", "--json", "--no-attach")
    alone = [
        json.loads(swiftchat("-m", str(folder), *options, *question, *more).stdout)["content"]
        for more in ((), ("--lora", str(adapter)))
    ]
    assert alone[0] != alone[1]
    arguments = (str(folder), *options, "--lora", str(adapter), "--openai", "127.0.0.1:0")
    with serve_process(*arguments, SWIFTCHAT_API_TOKEN="0123456789abcdef") as process:
        port = int(process.wait_for(r"http://127.0.0.1:(\d+)"))
        served = Served(port, FakeEngine([]))  # the engine is that of the process
        sent = {"temperature": 0, "max_tokens": 8}
        found = [served.chat_of(name, **sent)[1] for name in ("tiny", "tiny:odd")]
        assert [one["choices"][0]["message"]["content"] for one in found] == alone
        status, refused = served.request("/v1/embeddings", {"model": "tiny:odd", "input": "a"})
        assert (status, refused["error"]["param"]) == (400, "model")


def test_adapters_belong_to_one_model_of_an_api() -> None:
    for arguments in (("--openai", "127.0.0.1:0"), ("some-model",)):
        result = swiftchat("serve", *arguments, "--lora", "odd")
        assert result.returncode == 2 and b"--lora is for the clients" in result.stderr
