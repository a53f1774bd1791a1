"""Random requests over all tiers: each answer is that of the same prompt alone."""

import random
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from swiftchat.engine.api.kv_folder import KVFolder
from swiftchat.engine.api.params import EngineConfig
from swiftchat.engine.api.protocol import Finished, Tokens
from swiftchat.engine.generation.engine import Engine
from swiftchat.engine.kv_store.block_copies import Tensors, block_bytes
from swiftchat.engine.kv_store.block_store import BlockStore
from swiftchat.engine.kv_store.disk import Disk
from swiftchat.engine.kv_store.host_memory import HostMemory
from swiftchat.engine.kv_store.identity import CacheIdentity, ModelFiles
from swiftchat.engine.kv_store.speeds import Speeds
from swiftchat.engine.kv_store.staging import CopiedStaging, CpuStaging
from swiftchat.engine.schedule.blocks import Content
from swiftchat.engine.schedule.content import ROOT
from swiftchat.errors import OutOfMemory
from swiftchat.weights.model.directory import Model
from tests.support import heads
from tests.support.tiny import SamplingParams, engine, random_ids, run

_SIZE = 4
_CTX = 40
_BASE = random_ids(30, seed=8)
_OTHER = random_ids(30, seed=9)


def copy_on_cpu(source: Tensors, destination: Tensors, copies: Sequence[tuple[int, int]]) -> None:
    for from_, to in zip(source, destination, strict=True):
        for block, other in copies:
            to[:, other] = from_[:, block]


class Tiers:
    """An engine on the CPU with few blocks, a host tier that a GPU would have, and a disk."""

    def __init__(
        self, model: Path, folder: Path, num_blocks: int, host_blocks: int, draft: str | None = None
    ) -> None:
        config: dict[str, Any] = {
            "draft": draft,
            "block_size": _SIZE,
            "ctx_size_tokens": _CTX,
            "cache_tokens": num_blocks * _SIZE,
            "max_num_seqs": 3,
            "chunk_tokens": 16,
            "num_threads": 1,
        }
        self.engine: Engine = engine(model, **config)
        cache, allocator = self.engine.cache, self.engine.allocator
        for tensor in cache.tensors:  # unwritten slots must never be read
            tensor.fill_(float("nan"))
        engine_config = EngineConfig(**config)
        identity = CacheIdentity.of(
            ModelFiles.of(model, engine_config, "cpu"),
            engine_config,
            Model.open(model).config,
            cache,
            _CTX,
        )
        size_bytes = block_bytes(cache.tensors)
        self.host = HostMemory(cache.tensors, host_blocks * size_bytes, copy_on_cpu, pinned=False)
        # The staging of a GPU, or that of a CPU.
        is_copied = num_blocks % 2 == 0
        tensors = cache.tensors
        staging = CopiedStaging(tensors, pinned=False) if is_copied else CpuStaging(tensors)
        disk = Disk(KVFolder(folder, 40 * size_bytes), identity, staging)
        self.engine.use_store(BlockStore(allocator, size_bytes, self.host, disk))

    def check(self) -> None:
        self.engine.scheduler.check_integrity()
        self.host.check_integrity()


def prompt_of(source: int, length: int, ending: int) -> list[int]:
    """Return one of few prompts, many of which begin alike."""
    return [*(_BASE, _OTHER)[source][:length], *random_ids(ending, seed=ending)]


def machine(model: Path) -> type[RuleBasedStateMachine]:
    reference = engine(model, block_size=_SIZE, ctx_size_tokens=_CTX, num_threads=1)
    answers: dict[tuple[int, ...], list[int]] = {}

    def expected(prompt: list[int]) -> list[int]:
        key = tuple(prompt)
        if key not in answers:
            params = SamplingParams(temperature=0, max_tokens=6)
            answers[key] = run(reference, {1: prompt}, params)[0][1]
        return answers[key]

    class Requests(RuleBasedStateMachine):
        @initialize(num_blocks=st.integers(10, 16), host_blocks=st.integers(1, 12))
        def begin(self, num_blocks: int, host_blocks: int) -> None:
            self.folder = Path(tempfile.mkdtemp())
            self.sizes = num_blocks, host_blocks
            self.prompts: dict[int, list[int]] = {}
            self.ids: dict[int, list[int]] = {}
            self.next_id = 0
            self.start()

        @precondition(lambda self: not self.prompts)
        @rule()
        def start(self) -> None:
            """An engine of the next chat: only the files remain."""
            self.tiers = Tiers(model, self.folder, *self.sizes)
            self.engine = self.tiers.engine

        @rule(
            source=st.integers(0, 1),
            length=st.integers(1, 29),
            ending=st.integers(0, 5),
            is_kept=st.booleans(),
        )
        def add(self, source: int, length: int, ending: int, is_kept: bool) -> None:
            self.next_id += 1
            prompt = prompt_of(source, length, ending)
            self.prompts[self.next_id], self.ids[self.next_id] = prompt, []
            params = SamplingParams(temperature=0, max_tokens=6, saves_cache=is_kept)
            self.engine.add(self.next_id, prompt, params)

        @rule(num_steps=st.integers(1, 6))
        def step(self, num_steps: int) -> None:
            for _ in range(num_steps):
                if not self.engine.has_work:
                    return
                for id_, event in self.engine.step():
                    if isinstance(event, Tokens):
                        self.ids[id_] += event.ids
                    elif isinstance(event, Finished):
                        self.end(id_, event)
                self.tiers.check()

        def end(self, id_: int, end: Finished) -> None:
            prompt, ids = self.prompts.pop(id_), self.ids.pop(id_)
            answer = expected(prompt)
            assert ids == (answer[: len(ids)] if end.reason == "interrupt" else answer)
            assert end.restored_tokens + end.swapped_tokens <= 2 * len(prompt)

        @precondition(lambda self: self.prompts)
        @rule(data=st.data())
        def cancel(self, data: st.DataObject) -> None:
            self.engine.cancel(data.draw(st.sampled_from(sorted(self.prompts))))

        @rule(num_slices=st.integers(1, 20))
        def save(self, num_slices: int) -> None:
            for _ in range(num_slices):
                if self.engine.has_unsaved:
                    self.engine.prepare()

        @precondition(lambda self: self.engine.allocator.num_cached)
        @rule()
        @torch.inference_mode()
        def evict(self) -> None:
            """Another answer needs all blocks for a moment."""
            allocator = self.engine.allocator
            blocks = [
                allocator.allocate() for _ in range(allocator.num_free + allocator.num_cached)
            ]
            for tensor in self.engine.cache.tensors:
                tensor[:, blocks] = float("nan")
            allocator.release(blocks)
            self.tiers.check()

        @rule(seed=st.integers(0, 9))
        def damage(self, seed: int) -> None:
            """Change, truncate or remove a file, or all."""
            files = sorted(self.folder.glob("*/*.safetensors"))
            if not files:
                return
            chance = random.Random(seed)
            file = chance.choice(files)
            data = bytearray(file.read_bytes())
            match seed % 4:
                case 0:
                    file.unlink()
                case 1:
                    data[chance.randrange(len(data))] ^= 1
                    file.write_bytes(data)
                case 2:
                    file.write_bytes(data[: chance.randrange(len(data))])
                case 3:
                    KVFolder(self.folder).clear()

        def teardown(self) -> None:
            if hasattr(self, "engine"):
                self.step(3000)
                assert not self.prompts, "requests starve"
                assert self.engine.allocator.num_used == 0
                shutil.rmtree(self.folder)

    return Requests


def test_ids_are_those_of_each_request_alone(model: Path) -> None:
    run_state_machine_as_test(
        machine(model),
        settings=settings(
            max_examples=40,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_preempted_and_evicted_sequences_come_back_by_copies(model: Path, tmp_path: Path) -> None:
    tiers = Tiers(model, tmp_path, num_blocks=10, host_blocks=60)
    params = SamplingParams(temperature=0, max_tokens=6)
    prompts = {i: random_ids(25, seed=i) for i in range(6)}
    plain = engine(model, block_size=_SIZE, ctx_size_tokens=_CTX, num_threads=1)
    expected = {i: run(plain, {i: prompt}, params)[0][i] for i, prompt in prompts.items()}
    assert run(tiers.engine, prompts, params)[0] == expected
    before = tiers.engine.stats()
    assert before["host_blocks"] > 10
    ids, ends = run(tiers.engine, prompts, params)
    assert ids == expected
    swapped = [end.swapped_tokens for end in ends.values() if isinstance(end, Finished)]
    assert sum(swapped) > 4 * 20 and all(num <= 24 for num in swapped)
    computed = tiers.engine.stats()["computed_tokens"] - before["computed_tokens"]
    assert computed < 6 * (25 + 6) - sum(swapped) + 40


def test_heads_know_the_tokens_of_blocks_that_come_back(model: Path, tmp_path: Path) -> None:
    """Blocks from main memory, and of another chat from the disk."""
    draft = str(heads.write_eagle3(tmp_path / "draft", heads.eagle3_tensors()))
    params = replace(heads.DRAFT, max_tokens=6, speculate_tokens=2, saves_cache=True)
    prompts = {i: random_ids(25, seed=i) for i in range(5)}
    plain = engine(model, block_size=_SIZE, ctx_size_tokens=_CTX, num_threads=1, draft=draft)
    expected, counts = heads.propose_always(plain), list[int]()
    assert not any(_restored(plain, i, prompt, params) for i, prompt in prompts.items())
    for _ in range(2):
        tiers = Tiers(model, tmp_path / "kv", num_blocks=10, host_blocks=60, draft=draft)
        found = heads.propose_always(tiers.engine)
        for _ in range(2):
            found.clear()
            counts += [_restored(tiers.engine, i, prompt, params) for i, prompt in prompts.items()]
            assert found == expected and len(found) > 10
    assert all(count > 15 for count in counts[5:])  # the first turn computes everything


def _restored(engine: Engine, key: int, prompt: list[int], params: SamplingParams) -> int:
    """Generate and save; return how many tokens came from the tiers below the device."""
    end = run(engine, {key: prompt}, params)[1][key]
    while engine.has_unsaved:
        engine.prepare()
    assert isinstance(end, Finished)
    return end.restored_tokens + end.swapped_tokens


def test_restoring_does_not_overwrite_a_block_that_another_admission_copies(
    model: Path, tmp_path: Path
) -> None:
    tiers = Tiers(model, tmp_path, num_blocks=11, host_blocks=5)
    params = SamplingParams(temperature=0, max_tokens=6)
    lengths = [(6, 0), (23, 5), (9, 4), (18, 0)]
    prompts = {i: prompt_of(0, *lengths[i]) for i in range(4)}
    plain = engine(model, block_size=_SIZE, ctx_size_tokens=_CTX, num_threads=1)
    expected = {i: run(plain, {i: prompt}, params)[0][i] for i, prompt in prompts.items()}
    assert run(tiers.engine, prompts, params)[0] == expected


def test_host_memory_keeps_the_blocks_used_last(model: Path, tmp_path: Path) -> None:
    tiers = Tiers(model, tmp_path, num_blocks=10, host_blocks=3)
    params = SamplingParams(temperature=0, max_tokens=1)
    for seed in range(4):
        run(tiers.engine, {1: random_ids(30, seed=seed)}, params)
        tiers.check()
        assert tiers.host.num_blocks <= 3


@pytest.mark.parametrize("host_blocks", [1, 2])
def test_one_call_may_store_more_blocks_than_fit(host_blocks: int) -> None:
    device = (torch.arange(2 * 9 * 3, dtype=torch.float32).reshape(2, 9, 3),)
    size_bytes = block_bytes(device)
    host = HostMemory(device, host_blocks * size_bytes, copy_on_cpu, pinned=False)
    host.store([(block, Content(ROOT, (block,))) for block in range(8)])
    host.check_integrity()
    expected = device[0][:, 7].clone()
    found = host.find(ROOT, [7])
    assert found is not None and host.find(ROOT, [0]) is None
    assert host.read([found], [8]) == 1
    assert torch.equal(device[0][:, 8], expected)


def test_blocks_that_were_not_copied_are_not_stored() -> None:
    device = (torch.zeros(2, 9, 3),)

    def fails(*_: object) -> None:
        raise MemoryError

    host = HostMemory(device, 4 * block_bytes(device), fails, pinned=False)
    for _ in range(2):
        with pytest.raises(MemoryError):
            host.store([(block, Content(ROOT, (block,))) for block in range(3)])
        host.check_integrity()
        assert host.num_blocks == 0 and host.find(ROOT, [1]) is None


def test_a_restore_without_memory_leaks_no_block(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiers = Tiers(model, tmp_path, num_blocks=10, host_blocks=24)
    params = SamplingParams(temperature=0, max_tokens=1)
    prompts = [random_ids(30, seed=seed) for seed in range(2)]
    for prompt in prompts:
        run(tiers.engine, {1: prompt}, params)

    def fails(*_: object) -> int:
        raise MemoryError

    tiers.engine.add(2, prompts[0], params)
    with monkeypatch.context() as patch, pytest.raises(MemoryError):
        patch.setattr(Speeds, "is_worth_reading", lambda *_: True)
        patch.setattr(tiers.host, "read", fails)
        tiers.engine.step()
    tiers.engine.abort_all(OutOfMemory("no memory"))
    tiers.check()
    assert tiers.engine.allocator.num_used == 0
    assert len(run(tiers.engine, {3: prompts[0]}, params)[0][3]) == 1
