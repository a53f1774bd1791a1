"""Store: models found by name and path."""

import multiprocessing
import os
from pathlib import Path

import pytest
import transformers

from swiftchat.errors import BadModelFile, ModelNotFound
from swiftchat.weights.hub import cached_models
from swiftchat.weights.model.directory import Model
from swiftchat.weights.store import Store, default_store
from tests.support import llama_layouts
from tests.support.gguf import tiny as tiny_gguf
from tests.support.same_logits import assert_same_logits
from tests.support.tiny_llama import loaded, logits, tiny_llama


@pytest.fixture
def store(tmp_path: Path) -> Store:
    hub = tmp_path / "hub"
    snapshot = hub / "models--Owner--Cached-7B" / "snapshots" / ("a" * 40)
    make(snapshot)
    (snapshot / "model.safetensors").write_bytes(bytes(10))
    refs = hub / "models--Owner--Cached-7B" / "refs"
    refs.mkdir()
    (refs / "main").write_text("a" * 40)
    store = Store(tmp_path / "models", tmp_path / "cache", tmp_path / "hub")
    for name in ("Small-1B", "Small-3B", "meta/Large-70B", "other/Large"):
        make(store.root / name)
    return store


def make(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    return folder


@pytest.mark.parametrize(
    ("spelled", "found"),
    [
        ("Small-1B", "Small-1B"),
        ("small-1b", "Small-1B"),
        ("small-3", "Small-3B"),
        ("meta/Large-70B", "meta/Large-70B"),
        ("META/large-70b", "meta/Large-70B"),
        ("large-7", "meta/Large-70B"),
        ("large", "other/Large"),
    ],
)
def test_names_are_found(store: Store, spelled: str, found: str) -> None:
    assert store.resolve(spelled) == store.root / found


@pytest.mark.parametrize("spelled", ["Owner/Cached-7B", "owner/cached-7b", "cached"])
def test_names_in_the_hub_cache_are_found(store: Store, spelled: str) -> None:
    assert store.resolve(spelled).name == "a" * 40


def test_other_models_in_the_hub_cache_are_not_opened(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for a name that nothing has: the cache may have hundreds of models."""
    other = tmp_path / "hub" / "models--Another--Quokka"
    (make(other / "snapshots" / ("b" * 40)) / "model.safetensors").write_bytes(bytes(10))
    opened = []
    stored = cached_models.stored_directory
    monkeypatch.setattr(
        cached_models, "stored_directory", lambda *names: opened.append(names[0]) or stored(*names)
    )
    monkeypatch.setattr("huggingface_hub.scan_cache_dir", lambda *_: pytest.fail("a whole scan"))
    assert store.find("cached").name == "a" * 40 and store.has("Owner/Cached-7B")
    for name in ("nobody/nothing", "nothing", "qwen3:8b"):
        with pytest.raises(ModelNotFound):
            store.find(name)
        assert not store.has(name)
    assert "Another/Quokka" not in opened and "Owner/Cached-7B" in opened


def test_an_ambiguous_prefix_raises_an_error(store: Store) -> None:
    with pytest.raises(ModelNotFound, match=r"'small' is ambiguous: Small-1B, Small-3B"):
        store.resolve("small")


@pytest.mark.parametrize("spelled", ["smal-1b", "meta", "nobody/nothing", "../Small-1B", "", "  "])
def test_unknown_name_is_not_found(store: Store, spelled: str) -> None:
    with pytest.raises(ModelNotFound) as caught:
        store.resolve(spelled)
    assert caught.value.exit_code == 3
    assert caught.value.hint or spelled.startswith(".")


def test_the_hint_has_the_download_command_and_similar_names(store: Store) -> None:
    with pytest.raises(ModelNotFound) as caught:
        store.resolve("smal-1b")
    assert caught.value.hint.startswith(
        "swiftchat download OWNER/NAME; nearest installed: Small-1B"
    )
    with pytest.raises(ModelNotFound) as caught:
        store.resolve("owner/cached-8b")
    hint = caught.value.hint
    assert hint == "swiftchat download owner/cached-8b; nearest installed: Owner/Cached-7B"
    with pytest.raises(ModelNotFound) as caught:
        store.resolve("qwen3:8b")
    assert caught.value.hint.startswith("swiftchat download qwen3:8b")
    with pytest.raises(ModelNotFound) as caught:
        store.resolve("qwen3:9b")
    assert "nearest short names: qwen3:0.6b" in caught.value.hint
    with pytest.raises(ModelNotFound) as caught:
        store.resolve("zzz", offline=True)
    assert "needs network access" in caught.value.hint
    assert "swiftchat models lists short names" in caught.value.hint


def test_a_directory_is_found_by_its_path(store: Store, tmp_path: Path) -> None:
    mine = make(tmp_path / "mine")
    assert store.resolve(str(mine)) == mine
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadModelFile, match=r"config.json is missing"):
        store.resolve(str(tmp_path / "empty"))
    with pytest.raises(ModelNotFound, match="no model at"):
        store.resolve(str(tmp_path / "gone"))
    (tmp_path / "text").write_text("no model")
    with pytest.raises(ModelNotFound, match=r"text is not a model$"):
        store.resolve(str(tmp_path / "text"))


def test_relative_directory_without_a_model_does_not_hide_a_name(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = tmp_path / "work"
    (work / "Small-1B").mkdir(parents=True)
    monkeypatch.chdir(work)
    assert store.resolve("Small-1B") == store.root / "Small-1B"


def tiny_file(path: Path, **sizes: int) -> Path:
    defaults = {"hidden_size": 32, "intermediate_size": 40, "max_position_embeddings": 64}
    config = transformers.LlamaConfig(
        vocab_size=len(tiny_gguf.TOKENS),
        num_hidden_layers=1,
        num_attention_heads=2,
        **{**defaults, **sizes},
    )
    tiny_gguf.write(path, transformers.LlamaForCausalLM(config))
    return path


def folder_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def test_weights_of_a_gguf_file_are_not_copied(store: Store, tmp_path: Path) -> None:
    path = tiny_file(tmp_path / "My Model.Q4.gguf", hidden_size=512)
    found = store.resolve(str(path))
    model = Model.open(found)
    assert found.name == "My Model.Q4.gguf" and model.location == path
    assert {info.file for info in model.checkpoint().tensors.values()} == {path}
    assert path.stat().st_size > 1_000_000 > 20 * folder_bytes(store.cache)


def test_small_files_of_a_gguf_file_are_renewed_after_a_change(
    store: Store, tmp_path: Path
) -> None:
    path = tiny_file(tmp_path / "tiny.gguf")
    first = store.resolve(str(path))
    written = (first / "gguf.json").stat().st_mtime_ns
    assert store.resolve(str(path)) == first
    assert (first / "gguf.json").stat().st_mtime_ns == written
    tiny_file(path, intermediate_size=48)
    assert store.resolve(str(path)) == first
    assert Model.open(first).config.mlp.intermediate_size == 48
    Model.open(first).checkpoint()
    for damage in ("", "{}", '{"version": 0, "files": []}'):
        (first / "gguf.json").write_text(damage)
        Model.open(store.resolve(str(path))).checkpoint()
    (tmp_path / "link.gguf").symlink_to(path)
    assert store.resolve(str(tmp_path / "link.gguf")).name == "link.gguf"


def test_files_made_of_gguf_files_are_listed_and_removed(store: Store, tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        tiny_file(tmp_path / folder / "same.gguf")
        store.resolve(str(tmp_path / folder / "same.gguf"))
    assert "same.gguf" not in [model.name for model in store.list()]
    derived = store.derived()
    assert [(each.name, each.source) for each in derived] == [("same.gguf", "cache")] * 2
    assert {each.origin for each in derived} == {tmp_path / f / "same.gguf" for f in ("a", "b")}
    assert sum(each.size_bytes for each in derived) == folder_bytes(store.cache)
    with pytest.raises(ModelNotFound, match="ambiguous"):
        store.removable("same.gguf")
    removed = store.remove(str(tmp_path / "a" / "same.gguf"))
    assert removed.origin == tmp_path / "a" / "same.gguf"
    assert (tmp_path / "a" / "same.gguf").exists()
    (tmp_path / "b" / "same.gguf").unlink()  # the small files remain
    store.remove("same.gguf")
    assert store.derived() == [] and folder_bytes(store.cache) == 0
    with pytest.raises(ModelNotFound, match="nothing is stored") as caught:
        store.remove(str(tmp_path / "a" / "same.gguf"))
    assert "yours to delete" in caught.value.hint


def test_two_processes_open_a_gguf_file_at_once(store: Store, tmp_path: Path) -> None:
    path = tiny_file(tmp_path / "tiny.gguf")
    context = multiprocessing.get_context("fork")
    start, results = context.Barrier(2), context.Queue()

    def open_it() -> None:
        start.wait(60)
        found = store.resolve(str(path))
        results.put((str(found), len(Model.open(found).checkpoint().tensors)))

    children = [context.Process(target=open_it) for _ in range(2)]
    for child in children:
        child.start()
    assert len({results.get(timeout=60) for _ in children}) == 1
    for child in children:
        child.join(60)


def snapshot_of_bin_files(store: Store, model: transformers.PreTrainedModel) -> Path:
    """Write a snapshot of the hub cache: links to files named by their digests."""
    repo = store.hub_folder() / "models--Owner--Old-Model"
    snapshot = repo / "snapshots" / ("d" * 40)
    llama_layouts.write_bin(snapshot, model, shards=2)
    (repo / "blobs").mkdir()
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text("d" * 40)
    for number, file in enumerate(sorted(snapshot.iterdir())):
        blob = file.rename(repo / "blobs" / f"{number:064}")
        file.symlink_to(os.path.relpath(blob, snapshot))
    return snapshot


def test_a_bin_model_of_the_hub_is_converted_once(store: Store) -> None:
    model = tiny_llama()
    snapshot = snapshot_of_bin_files(store, model)
    assert "Owner/Old-Model" in [model.name for model in store.list()]
    labels: list[str] = []
    found = store.resolve("old-model", progress=lambda label, *_: labels.append(label))
    assert found.parent == store.cache and "converting" in labels
    assert_same_logits(logits(loaded(found)), logits(model))
    labels.clear()
    assert (
        store.resolve("Owner/Old-Model", progress=lambda label, *_: labels.append(label)) == found
    )
    assert labels == []
    store.remove("Owner/Old-Model")
    assert not snapshot.exists() and not found.exists()


def test_a_hub_model_with_safetensors_is_not_converted(store: Store) -> None:
    snapshot = snapshot_of_bin_files(store, tiny_llama())
    (snapshot / "model.safetensors").write_bytes(b"x")
    assert store.resolve("old-model") == snapshot


def test_a_missing_gguf_raises_an_error(store: Store, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"none\.gguf"):
        store.resolve(str(tmp_path / "none.gguf"))


def test_list_has_every_model_once(store: Store) -> None:
    make(store.root / ".hidden.partial")
    listed = {(model.name, model.source) for model in store.list()}
    local = {"Small-1B", "Small-3B", "meta/Large-70B", "other/Large"}
    assert listed == {(name, "local") for name in local} | {("Owner/Cached-7B", "hub")}
    sizes = {model.name: model.size_bytes for model in store.list()}
    assert sizes["Small-1B"] == 2
    assert sizes["Owner/Cached-7B"] == 12


def test_an_empty_store_lists_only_hub_models(store: Store, tmp_path: Path) -> None:
    empty = Store(tmp_path / "nowhere", tmp_path / "cache", tmp_path / "hub")
    assert [model.source for model in empty.list()] == ["hub"]


def test_remove_needs_the_full_name(store: Store) -> None:
    with pytest.raises(ModelNotFound):
        store.remove("small")
    assert store.remove("small-1b").name == "Small-1B"
    assert not (store.root / "Small-1B").exists()
    assert (store.root / "Small-3B").exists()
    with pytest.raises(ModelNotFound):
        store.remove("Small-1B")
    assert sorted(entry.name for entry in store.root.iterdir()) == ["Small-3B", "meta", "other"]


def test_remove_from_the_hub_cache(store: Store) -> None:
    assert store.remove("Owner/Cached-7B").source == "hub"
    assert [model.source for model in store.list()] == ["local"] * 4


def test_an_alias_selects_only_its_model(store: Store) -> None:
    make(store.root / "SmolLM2-135M-Instruct-tuned")
    with pytest.raises(ModelNotFound):
        store.resolve("smollm2:135m")
    mine = make(store.root / "SmolLM2-135M-Instruct")
    assert store.resolve("SmolLM2:135M") == mine and store.has("smollm2:135m")
    hub = store.hub_folder() / "models--Qwen--Qwen3-8B" / "snapshots" / ("b" * 40)
    (make(hub) / "model.safetensors").write_bytes(b"x")
    assert store.resolve("qwen3:8b") == hub
    assert store.remove("qwen3:8b").name == "Qwen/Qwen3-8B"
    assert not hub.exists()
    with pytest.raises(ModelNotFound):
        store.resolve("qwen3:8b")


def test_the_default_store_is_in_the_user_folders(tmp_path: Path) -> None:
    store = default_store()
    assert store.root.is_relative_to(tmp_path)
    assert store.cache.is_relative_to(tmp_path)
    assert store.root != store.cache
