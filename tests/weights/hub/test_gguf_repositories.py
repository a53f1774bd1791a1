"""GGUF files on the hub: named by type, stored side by side, listed, found and removed."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from swiftchat.errors import ModelNotFound, SwiftchatError
from swiftchat.weights.download import download, plan_download
from swiftchat.weights.hub.cached_models import disk_bytes
from swiftchat.weights.hub.names import (
    HubName,
    gguf_models,
    matching_type,
    usual_image_part,
    usual_type,
)
from swiftchat.weights.store import Store
from tests.support.fake_hub import COMMIT, FakeHub, in_use, serving
from tests.support.gguf import tiny as tiny_gguf
from tests.support.tiny_llama import tiny_llama

REPO = "Owner/Model-GGUF"
SPLIT = [f"Q8_0/Model-Q8_0-0000{i}-of-00002.gguf" for i in (1, 2)]
TYPES = ["BF16", "Q4_K_M", "Q8_0", "UD-Q4_K_XL"]


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    names = ("Model-BF16.gguf", "Model-Q4_K_M.gguf", "Model-UD-Q4_K_XL.gguf", *SPLIT)
    files = {name: b"GGUF" + name.encode() for name in names}
    beside = {"README.md": b"# x", "config.json": b"{}", "mmproj-F16.gguf": b"GGUF vision"}
    with in_use(FakeHub({**files, **beside, "imatrix.gguf": b"GGUF i"}, REPO), monkeypatch) as hub:
        yield hub


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "models", tmp_path / "cache", tmp_path / "hub")


def blobs(store: Store) -> set[bytes]:
    folder = store.hub_folder() / "models--Owner--Model-GGUF" / "blobs"
    return {path.read_bytes() for path in folder.iterdir()} if folder.is_dir() else set()


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("owner/name", HubName("owner/name")),
        ("owner/name:Q4_K_M", HubName("owner/name", "Q4_K_M")),
        ("hf.co/owner/name:q8_0", HubName("owner/name", "q8_0")),
        ("https://huggingface.co/owner/name", HubName("owner/name")),
        ("https://www.huggingface.co/owner/name/", HubName("owner/name")),
        ("https://hf.co/owner/name/tree/v1.0", HubName("owner/name", revision="v1.0")),
        (
            "https://huggingface.co/owner/name/resolve/main/a/b-Q4_0.gguf?download=true",
            HubName("owner/name", None, "main", "a/b-Q4_0.gguf"),
        ),
        ("owner/name/a-Q4_0.gguf", HubName("owner/name", file="a-Q4_0.gguf")),
        # Names of another form stay whole.
        ("qwen3:8b", HubName("qwen3:8b")),
        ("SmolLM2-135M-Instruct", HubName("SmolLM2-135M-Instruct")),
        ("a/b/c", HubName("a/b/c")),
        ("/a.gguf", HubName("/a.gguf")),
        ("https://example.org/owner/name", HubName("https://example.org/owner/name")),
        ("", HubName("")),
    ],
)
def test_typed_names(typed: str, found: HubName) -> None:
    assert HubName.parse(typed) == found


@pytest.mark.parametrize(
    ("files", "kinds"),
    [
        (["a.gguf"], [""]),
        (["a.gguf", "b.gguf"], ["a", "b"]),
        (["x.Q4_K_M.gguf", "x.i1-IQ2_XXS.gguf", "x-f16.GGUF"], ["F16", "Q4_K_M", "IQ2_XXS"]),
        (["gpt-oss-20b-mxfp4.gguf", "x_TQ1_0.gguf"], ["MXFP4", "TQ1_0"]),
        (["a-Q8_0.gguf", "b-Q8_0.gguf"], ["a-Q8_0", "b-Q8_0"]),
        (["x-Q8_0-00001-of-00002.gguf", "x-Q8_0-00002-of-00002.gguf"], ["Q8_0"]),
        (["x-Q8_0-00001-of-00002.gguf"], []),  # incomplete
        (["mmproj-x-F16.gguf", "x.imatrix.gguf", "config.json"], []),
        (["x-Q4_0.gguf", "MTP/mtp-x-Q4_0.gguf"], ["Q4_0"]),
    ],
)
def test_models_among_files(files: list[str], kinds: list[str]) -> None:
    assert sorted(gguf_models(files)) == sorted(kinds)


@pytest.mark.parametrize(
    ("kinds", "chosen"),
    [
        (["Q8_0", "Q4_K_M", "Q2_K"], "Q4_K_M"),
        (["BF16", "Q8_0", "UD-Q4_K_XL"], "UD-Q4_K_XL"),
        (["Q6_K", "Q5_K_S", "IQ2_M", "NVFP4"], "Q5_K_S"),  # the smallest that runs
        (["IQ3_M", "IQ2_M"], "IQ2_M"),
    ],
)
def test_the_type_that_is_taken_where_none_is_named(kinds: list[str], chosen: str) -> None:
    order = ("NVFP4", "IQ2_M", "IQ3_M", "Q2_K", "Q4_K_M", "UD-Q4_K_XL", "Q5_K_S", "Q6_K")
    sizes = {kind: order.index(kind) if kind in order else len(order) for kind in kinds}
    assert usual_type(sizes) == chosen


def test_a_type_also_names_the_mix_of_unsloth() -> None:
    assert matching_type("q4_k_m", ["UD-Q4_K_M", "Q4_K_M"]) == "Q4_K_M"
    assert matching_type("q4_k_m", ["UD-Q4_K_M", "Q8_0"]) == "UD-Q4_K_M"
    assert matching_type("UD-Q4_K_M", ["Q4_K_M"]) is None
    assert matching_type("", ["", "Q8_0"]) is None


def test_types_lie_side_by_side(hub: FakeHub, store: Store) -> None:
    first = download(f"{REPO}:q4_k_m", store)
    assert first.name == "Model-Q4_K_M.gguf" and first.parent.name == COMMIT
    assert store.find(REPO) == store.find(REPO.lower()) == store.find("model-g") == first
    assert store.find(f"{REPO}:Q4_K_M") == store.find(f"https://hf.co/{REPO}:Q4_K_M") == first
    assert store.find(f"{REPO}/Model-Q4_K_M.gguf") == first
    assert store.names() == [model.name for model in store.list()] == [f"{REPO}:Q4_K_M"]
    split = download(f"{REPO}:Q8_0", store)
    assert split.name == SPLIT[0].rpartition("/")[2]
    assert store.find(f"{REPO}:Q8_0") == split and store.find(f"{REPO}:Q4_K_M") == first
    assert store.names() == [f"{REPO}:Q4_K_M", f"{REPO}:Q8_0"]
    sizes = {model.name: model.size_bytes for model in store.list()}
    assert sizes[f"{REPO}:Q8_0"] == sum(len(hub.files[name]) for name in SPLIT)
    assert store.has(REPO) and store.has(f"{REPO}:Q8_0") and not store.has(f"{REPO}:BF16")
    assert b"GGUF vision" not in blobs(store)


def test_one_of_several_types_is_chosen(hub: FakeHub, store: Store) -> None:
    """Before the download; where several are stored, one must be named to run or remove it."""
    sizes = {name: len(hub.files[f"Model-{name}.gguf"]) for name in TYPES if name != "Q8_0"}
    sizes["Q8_0"] = sum(len(hub.files[name]) for name in SPLIT)
    asked: list[object] = []

    def choose(repo: str, found: Mapping[str, int]) -> str:
        asked.append((repo, found))
        return "Q8_0"

    assert plan_download(REPO, store, choose=choose).repo == f"{REPO}:Q8_0"
    assert asked == [(REPO, sizes)]
    assert plan_download(f"{REPO}:BF16", store, choose=choose).repo == f"{REPO}:BF16"
    assert len(asked) == 1 and plan_download(REPO, store).repo == f"{REPO}:Q4_K_M"
    with pytest.raises(ModelNotFound, match="no GGUF model of type Q5_K_M") as caught:
        download(f"{REPO}:Q5_K_M", store)
    assert caught.value.hint == f"it has {', '.join(TYPES)}: swiftchat download {REPO}:Q4_K_M"
    for kind in ("Q4_K_M", "BF16"):
        download(f"{REPO}:{kind}", store)
    assert store.named(REPO) is None and store.has(REPO)
    for act in (store.find, store.remove, store.removable):
        with pytest.raises(ModelNotFound, match=r"is ambiguous: .*BF16, .*Q4_K_M"):
            act(REPO)
    with pytest.raises(ModelNotFound, match="not installed") as caught:
        store.find(f"{REPO}:Q8_0")
    assert caught.value.hint.startswith(f"swiftchat download {REPO}:Q8_0; nearest installed:")
    with pytest.raises(ModelNotFound, match="not installed"):
        store.remove(f"{REPO}:Q8_0")
    assert len(store.list()) == 2


def test_removing_a_type_keeps_the_others(hub: FakeHub, store: Store) -> None:
    """Also content that two files have, and what another revision has of the same file."""
    hub.files["Model-UD-Q4_K_XL.gguf"] = hub.files["Model-BF16.gguf"]
    for kind in ("Q8_0", "UD-Q4_K_XL", "BF16"):
        path = download(f"{REPO}:{kind}", store)
    other = path.parents[1] / ("a" * 40) / path.name
    other.parent.mkdir()
    other.symlink_to(path.resolve())
    assert store.remove(f"{REPO}:BF16").name == f"{REPO}:BF16"
    assert store.names() == [f"{REPO}:Q8_0", f"{REPO}:UD-Q4_K_XL"]
    assert hub.files["Model-BF16.gguf"] in blobs(store) and not other.exists()
    store.remove(f"{REPO}:UD-Q4_K_XL")
    assert hub.files["Model-BF16.gguf"] not in blobs(store)
    assert hub.files[SPLIT[1]] in blobs(store)
    store.remove(REPO)  # the only one
    assert store.list() == [] and blobs(store) == set()


def test_safetensors_and_gguf_of_one_repository(hub: FakeHub, store: Store) -> None:
    hub.files["model.safetensors"] = bytes(100)
    folder = download(REPO, store)
    file = download(f"{REPO}:Q4_K_M", store)
    assert store.find(REPO) == folder == file.parent
    assert store.find(f"{REPO}:Q4_K_M") == file
    assert store.names() == [model.name for model in store.list()] == [REPO, f"{REPO}:Q4_K_M"]
    assert store.list()[0].size_bytes == 100 + len(b"# x{}")
    store.remove(REPO)
    assert store.names() == [f"{REPO}:Q4_K_M"] and store.find(REPO) == file
    assert bytes(100) not in blobs(store)


def test_a_type_does_not_bring_other_weights(hub: FakeHub, store: Store) -> None:
    hub.files["model.safetensors"] = bytes(100)
    found = plan_download(f"{REPO}:BF16", store)
    assert found.repo == f"{REPO}:BF16"
    assert found.size_bytes == len(hub.files["Model-BF16.gguf"]) + len(b"# x{}")
    found.run(None)
    assert plan_download(f"{REPO}:BF16", store).missing_bytes == 0


def test_the_only_gguf_file_needs_no_type(hub: FakeHub, store: Store) -> None:
    for name in [*hub.files]:
        if name.endswith(".gguf") and not name.startswith(("Model-BF16", "mmproj")):
            del hub.files[name]
    assert download(REPO, store).name == "Model-BF16.gguf"
    assert store.find(f"{REPO}:bf16").name == "Model-BF16.gguf"


def test_the_vision_part_comes_when_it_is_asked_for(hub: FakeHub, store: Store) -> None:
    """One file for all types; it goes with the last of them, and counts once."""
    hub.files |= {"mmproj-BF16.gguf": b"GGUF bf16", "mmproj-F32.gguf": b"GGUF f32"}
    hub.files["model.safetensors"] = bytes(100)
    part_bytes = len(b"GGUF vision")
    model_bytes = {kind: len(hub.files[f"Model-{kind}.gguf"]) for kind in ("BF16", "Q4_K_M")}
    for kind in model_bytes:
        download(f"{REPO}:{kind}", store)
    assert b"GGUF vision" not in blobs(store) and not store.list()[0].image_parts
    plan = plan_download(f"{REPO}:Q4_K_M", store, with_images=True)
    assert plan.missing_bytes == part_bytes
    assert plan.run(None).name == "Model-Q4_K_M.gguf"
    assert b"GGUF vision" in blobs(store) and b"GGUF bf16" not in blobs(store)
    download(REPO, store)
    weights, *models = store.list()
    assert [model.gguf_type for model in models] == [*model_bytes] and not weights.image_parts
    for model in models:
        assert [part.name for part in model.image_parts] == ["mmproj-F16.gguf"]
        assert model.size_bytes == model_bytes[model.gguf_type] + part_bytes
    assert disk_bytes(models) == sum(model_bytes.values()) + part_bytes
    store.remove(f"{REPO}:BF16")
    assert b"GGUF vision" in blobs(store)
    assert store.find(str(models[1].path.parent)) == weights.path
    store.remove(f"{REPO}:Q4_K_M")
    assert b"GGUF vision" not in blobs(store) and store.names() == [REPO]


@pytest.mark.parametrize("name", [f"{REPO}:BF16", REPO])
def test_a_repository_without_a_vision_part(hub: FakeHub, store: Store, name: str) -> None:
    del hub.files["mmproj-F16.gguf"]
    if name == REPO:
        hub.files["model.safetensors"] = bytes(10)
    with pytest.raises(ModelNotFound, match=f"{name} has no vision part") as caught:
        plan_download(name, store, with_images=True)
    assert caught.value.hint.endswith(f"swiftchat download {name}")


@pytest.mark.parametrize(
    ("files", "chosen"),
    [
        (["mmproj-F32.gguf", "mmproj-BF16.gguf", "mmproj-x-f16.gguf"], "mmproj-x-f16.gguf"),
        (["x.mmproj-Q8_0.gguf", "mmproj-F32.gguf"], "x.mmproj-Q8_0.gguf"),
        (["x-mmproj.gguf", "x-Q4_0.gguf"], "x-mmproj.gguf"),
        (["x-Q4_0.gguf", "mmproj.json"], None),
    ],
)
def test_the_vision_part_that_is_downloaded(files: list[str], chosen: str | None) -> None:
    assert usual_image_part(files) == chosen


def test_an_include_pattern_brings_the_same(hub: FakeHub, store: Store) -> None:
    folder = plan_download(REPO, store, include=["*-Q4_K_M*"]).run(None)
    assert store.names() == [f"{REPO}:Q4_K_M"]
    assert store.find(str(folder)) == store.find(REPO) == folder / "Model-Q4_K_M.gguf"


@pytest.mark.parametrize(
    ("removed", "name", "message", "hint"),
    [
        (
            (),
            f"https://hf.co/{REPO}/blob/main/mmproj-F16.gguf",
            "no GGUF model mmproj-F16.gguf, which is the vision part of one",
            f"swiftchat download {REPO}:Q4_K_M --with-images",
        ),
        ((".gguf",), f"{REPO}:Q4_K_M", "no GGUF model of type Q4_K_M", "look for a version"),
        ((".gguf",), REPO, "no safetensors and no pytorch_model.bin", "look for a"),
    ],
)
def test_what_a_repository_lacks(
    hub: FakeHub, store: Store, removed: tuple[str, ...], name: str, message: str, hint: str
) -> None:
    for file in [*hub.files]:
        if file.endswith(removed):
            del hub.files[file]
    with pytest.raises(SwiftchatError, match=message) as caught:
        download(name, store)
    assert hint in str(caught.value.hint)


def test_a_type_with_missing_files(hub: FakeHub, store: Store) -> None:
    del hub.files[SPLIT[1]]
    with pytest.raises(ModelNotFound, match="of type q8_0 that is complete: the rep") as caught:
        plan_download(f"{REPO}:q8_0", store)
    assert caught.value.hint.startswith("it has BF16, Q4_K_M, UD-Q4_K_XL: swiftchat download")


def test_a_repository_of_safetensors_says_how_it_is_downloaded(hub: FakeHub, store: Store) -> None:
    hub.files = {"config.json": b"{}", "model.safetensors": bytes(10)}
    with pytest.raises(ModelNotFound, match="no GGUF model of type Q4_K_M") as caught:
        download(f"{REPO}:Q4_K_M", store)
    assert caught.value.hint == (
        f"its other files run: swiftchat download {REPO}, "
        f"or quantized: swiftchat download {REPO}:4bit"
    )


def test_a_folder_with_gguf_files(store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "my models"
    folder.mkdir()
    (folder / "a-Q4_0.gguf").write_bytes(b"GGUF")
    assert store.find(str(folder)) == folder / "a-Q4_0.gguf"
    (folder / "mmproj-F16.gguf").write_bytes(b"GGUF")
    assert store.find(str(folder)) == folder / "a-Q4_0.gguf"
    (folder / "b-Q4_0.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelNotFound, match=r"holds 2 models: a-Q4_0.gguf, b-Q4_0.gguf") as caught:
        store.find(str(folder))
    assert caught.value.hint == f"name one: swiftchat -m '{folder}/a-Q4_0.gguf'"
    for name in (str(folder / "c.gguf"), "c.gguf", "./c.gguf"):
        with pytest.raises(ModelNotFound, match=r"no file .*c\.gguf"):
            store.find(name)


@pytest.fixture
def address(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of the hub for programs."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with serving(hub) as url:
        monkeypatch.setenv("HF_ENDPOINT", url)
        yield url


@pytest.mark.usefixtures("address")
def test_commands(hub: FakeHub, tmp_path: Path) -> None:
    """Download, list, show and rm of a GGUF file, and the hints of what is not installed."""
    tiny_gguf.write(tmp_path / "m.gguf", tiny_llama())
    hub.files["Model-Q4_K_M.gguf"] = (tmp_path / "m.gguf").read_bytes()

    def run(*args: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "swiftchat.chat", *args]
        return subprocess.run(command, input="", capture_output=True, text=True)

    missing = run("show", REPO)
    assert missing.returncode == 3
    done = run(*re.search(r"swiftchat (download \S+)", missing.stderr)[1].split())
    assert done.returncode == 0 and done.stdout.strip().endswith("/Model-Q4_K_M.gguf")
    assert done.stderr.startswith(f"{REPO} is {REPO}:Q4_K_M: ")
    (row,) = json.loads(run("list", "--json").stdout)
    assert (row["name"], row["path"]) == (f"{REPO}:Q4_K_M", done.stdout.strip())
    assert row["size_bytes"] == len(hub.files["Model-Q4_K_M.gguf"])
    for name in (REPO, f"{REPO}:Q4_K_M"):
        shown = json.loads(run("show", name, "--json").stdout)
        assert (shown["name"], shown["family"]) == (f"{REPO}:Q4_K_M", "llama")
    assert run("download", REPO, "--with-images").stdout == done.stdout
    assert "Q4_K_M+images" in run("list").stdout
    (row,) = json.loads(run("list", "--json").stdout)
    assert [part.rpartition("/")[2] for part in row["image_parts"]] == ["mmproj-F16.gguf"]
    removed = run("rm", f"{REPO}:Q4_K_M", "-y")
    assert removed.returncode == 0 and f"removed {REPO}:Q4_K_M" in removed.stderr
    assert json.loads(run("list", "--all", "--json").stdout) == []
