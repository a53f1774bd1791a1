"""KV blocks on disk: restored and computed caches agree, and every bad file is left out."""

import os
import resource
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from swiftchat.engine.api.kv_folder import KVFolder
from swiftchat.engine.api.params import EngineConfig
from swiftchat.engine.api.protocol import Finished
from swiftchat.engine.generation.build import build_engine
from swiftchat.engine.generation.engine import Engine
from tests.support.tiny import BLOCK_SIZE, SamplingParams, logprobs, random_ids, run
from tests.support.tiny_models import make

PARAMS = SamplingParams(temperature=0, max_tokens=6, saves_cache=True)
PROMPT = random_ids(81, seed=1)
NUM_BLOCKS = (len(PROMPT) + 5) // BLOCK_SIZE


def open_engine(model: Path, folder: Path | None, **config: object) -> Engine:
    settings: dict[str, object] = {"device": "cpu", "dtype": "float32", "block_size": BLOCK_SIZE}
    return build_engine(model, EngineConfig(**{**settings, **config}), kv_folder=folder)


def answer(
    engine: Engine, prompt: Sequence[int] = PROMPT, params: SamplingParams = PARAMS
) -> tuple[list[int], Finished]:
    """Answer, then save in idle time as the server does."""
    ids, ends = run(engine, {1: prompt}, params)
    while engine.has_unsaved:
        engine.prepare()
    end = ends[1]
    assert isinstance(end, Finished)
    return ids[1], end


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*/*.safetensors"))


@pytest.mark.parametrize(
    ("kv_dtype", "kernels"),
    [("auto", True), ("auto", False), ("int8", False), ("fp8", True), ("int5", True)],
)
def test_a_new_engine_restores_what_another_computed(
    model: Path, tmp_path: Path, kv_dtype: str, kernels: bool
) -> None:
    config = {"kv_dtype": kv_dtype, "kernels": kernels}
    params = SamplingParams(temperature=0, max_tokens=6, logprobs=3, saves_cache=True)
    writer = open_engine(model, tmp_path, **config)
    expected = logprobs(writer, PROMPT, params)
    assert answer(writer)[1].restored_tokens == 0
    reader = open_engine(model, tmp_path, **config)
    found = logprobs(reader, PROMPT, params)
    assert found[0] == expected[0]
    for one, other in zip(found[1], expected[1], strict=True):
        assert one.logprob == pytest.approx(other.logprob, abs=1e-4)
    # All but the last block of the prompt, whose last token is always computed.
    stats = reader.stats()
    assert stats["disk_tokens_restored"] == (len(PROMPT) - 1) // BLOCK_SIZE * BLOCK_SIZE
    assert stats["computed_tokens"] < 2 * BLOCK_SIZE + 6
    assert stats["disk_blocks"] == NUM_BLOCKS
    reader.scheduler.check_integrity()


def test_the_second_turn_and_another_conversation_restore_the_common_prefix(
    model: Path, tmp_path: Path
) -> None:
    ids, _ = answer(open_engine(model, tmp_path))
    turn = [*PROMPT, *ids, *random_ids(10, seed=3)]
    engine = open_engine(model, tmp_path)
    expected, _ = answer(open_engine(model, None), turn)
    found, end = answer(engine, turn)
    assert found == expected and end.restored_tokens == NUM_BLOCKS * BLOCK_SIZE
    num_files = len(files(tmp_path))
    assert num_files == 3  # of 16 blocks, of the rest, and of the second turn
    # The first 18 tokens are common: 4 blocks and a part of the fifth.
    other = [*PROMPT[:18], *random_ids(20, seed=4)]
    expected, _ = answer(open_engine(model, None), other)
    found, end = answer(open_engine(model, tmp_path), other)
    assert found == expected and end.restored_tokens == end.cached_tokens == 18


def test_nothing_is_written_unless_the_request_allows_it(model: Path, tmp_path: Path) -> None:
    params = SamplingParams(temperature=0, max_tokens=6)
    answer(open_engine(model, tmp_path), params=params)
    answer(open_engine(model, tmp_path / "none", cache_max_bytes=0))
    answer(open_engine(model, tmp_path), PROMPT[: BLOCK_SIZE - 2], SamplingParams(max_tokens=1))
    assert files(tmp_path) == [] and not (tmp_path / "none").exists()


@pytest.mark.fault(28)
def test_files_are_private_whatever_the_umask(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "kv"
    folder.mkdir(mode=0o755)
    old = os.umask(0)
    try:
        answer(open_engine(model, folder))
    finally:
        os.umask(old)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in files(folder)}
    assert modes == {0o600}
    assert {stat.S_IMODE(p.stat().st_mode) for p in (folder, *folder.iterdir())} == {0o700}


def _flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 4
    path.write_bytes(data)


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-50])


def _foreign_key(path: Path) -> None:
    data = path.read_bytes()
    key = path.parent.name.encode()
    path.write_bytes(data.replace(key, key[::-1]))


DAMAGES = {
    "data": lambda path: _flip(path, path.stat().st_size // 2),
    "header": lambda path: _flip(path, 20),
    "tokens": lambda path: _flip(path, 8 + int.from_bytes(path.read_bytes()[:8], "little") + 5),
    "checksum": lambda path: _flip(path, -1),
    "truncated": _truncate,
    "empty": lambda path: path.write_bytes(b""),
    "foreign": _foreign_key,
}


@pytest.mark.fault(47)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_bad_file_is_removed_with_one_line(model: Path, tmp_path: Path, damage: str) -> None:
    expected, _ = answer(open_engine(model, tmp_path))
    first = next(path for path in files(tmp_path) if path.name.startswith("0" * 24))
    DAMAGES[damage](first)
    params = SamplingParams(temperature=0, max_tokens=6)
    found, end = answer(open_engine(model, tmp_path), params=params)
    assert found == expected and end.restored_tokens < 16 * BLOCK_SIZE
    assert len(end.warnings) == 1 and "removed" in end.warnings[0]
    assert first not in files(tmp_path)
    assert answer(open_engine(model, tmp_path))[1].warnings == ()


def test_a_model_replaced_under_the_same_name_does_not_match(tmp_path: Path) -> None:
    folder, kv = tmp_path / "model", tmp_path / "kv"
    # Larger than 1 MiB, so that the content is not read.
    make("llama", folder, intermediate_size=1500)
    weights = folder / "model.safetensors"
    state = weights.stat()
    assert state.st_size > 1 << 20
    answer(open_engine(folder, kv))
    data = bytearray(weights.read_bytes())
    data[-400_000:] = bytes(400_000)
    weights.unlink()
    weights.write_bytes(data)
    os.utime(weights, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert weights.stat().st_size == state.st_size
    expected, _ = answer(open_engine(folder, None))
    found, end = answer(open_engine(folder, kv))
    assert found == expected and end.restored_tokens == 0
    assert "model has changed" in end.warnings[0]
    assert len({path.parent for path in files(kv)}) == 1


def test_files_of_a_changed_model_that_cannot_be_removed_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, kv = tmp_path / "model", tmp_path / "kv"
    make("llama", folder)
    answer(open_engine(folder, kv))
    make("llama", folder, intermediate_size=48)

    def refuse(path: object, *_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", refuse)
        _, end = answer(open_engine(folder, kv))
    assert end.restored_tokens == 0 and end.warnings == ()
    assert len({path.parent for path in files(kv)}) == 2


def test_the_least_recently_used_files_are_evicted(model: Path, tmp_path: Path) -> None:
    prompts = [random_ids(61, seed=seed) for seed in range(4)]
    for prompt in prompts[:3]:
        answer(open_engine(model, tmp_path), prompt)
    sizes = [path.stat().st_size for path in files(tmp_path)]
    bound = sum(sizes) + 100
    assert answer(open_engine(model, tmp_path), prompts[0])[1].restored_tokens  # is used again
    answer(open_engine(model, tmp_path, cache_max_bytes=bound), prompts[3])
    assert sum(path.stat().st_size for path in files(tmp_path)) <= bound
    restored = [
        answer(open_engine(model, tmp_path), prompt, SamplingParams(max_tokens=1))[
            1
        ].restored_tokens
        for prompt in prompts
    ]
    assert restored[0] and restored[2] and restored[3] and not restored[1]


@pytest.mark.parametrize("bound_files", [0.5, 1.5])
def test_a_conversation_above_the_bound_is_written_only_once(
    model: Path, tmp_path: Path, bound_files: float
) -> None:
    answer(open_engine(model, tmp_path / "all"))
    sizes = [path.stat().st_size for path in files(tmp_path / "all")]
    assert len(sizes) == 2
    bound = int(bound_files * max(sizes))
    engine = open_engine(model, tmp_path / "bounded", cache_max_bytes=bound)
    run(engine, {1: PROMPT}, PARAMS)
    for _ in range(4 * NUM_BLOCKS):
        engine.prepare()
    assert not engine.has_unsaved
    assert sum(path.stat().st_size for path in files(tmp_path / "bounded")) <= bound


@contextmanager
def largest_file(num_bytes: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_ends_writing_with_one_line(model: Path, tmp_path: Path) -> None:
    engine = open_engine(model, tmp_path)
    with largest_file(5000):
        expected, end = answer(engine)
    assert end.warnings == ()
    found, end = answer(engine)
    assert found == expected and "not written" in end.warnings[0]
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    assert answer(engine)[1].warnings == ()


def test_the_folder_may_be_cleared_at_any_time(model: Path, tmp_path: Path) -> None:
    engine = open_engine(model, tmp_path)
    run(engine, {1: PROMPT}, PARAMS)
    engine.prepare()
    engine.prepare()
    shutil.rmtree(next(tmp_path.iterdir()))
    while engine.has_unsaved:
        engine.prepare()
    assert answer(engine)[1].warnings == ()
    reader = open_engine(model, tmp_path)
    assert reader.stats()["disk_blocks"] == NUM_BLOCKS
    assert KVFolder(tmp_path).clear()[0] == 2
    assert reader.stats()["disk_blocks"] == 0
    assert answer(reader)[1].restored_tokens == 0


def test_two_engines_write_and_restore_one_conversation(model: Path, tmp_path: Path) -> None:
    engines = [open_engine(model, tmp_path) for _ in range(2)]
    for engine in engines:
        run(engine, {1: PROMPT}, PARAMS)
    while any(engine.has_unsaved for engine in engines):
        for engine in engines:
            if engine.has_unsaved:
                engine.prepare()
    assert len(files(tmp_path)) == 2
    longer = [*PROMPT, *random_ids(20, seed=6)]
    expected, _ = answer(open_engine(model, None), longer)
    assert answer(engines[0], longer)[0] == expected
    ids, end = answer(engines[1], longer)  # has the first part, and restores the second
    assert ids == expected and end.restored_tokens > 0
    assert not list(tmp_path.rglob("*.partial"))
