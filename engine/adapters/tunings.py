"""The adapters and soft prompts of an engine, and the forward pass of batches that use them."""

import hashlib
import struct
from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from swiftchat.engine.adapters.adapter_set import SetBuilder
from swiftchat.engine.adapters.tuned_forward import tuned_forward
from swiftchat.engine.adapters.virtual_tokens import store_virtual, virtual_tokens
from swiftchat.engine.api.tuning import Tuning
from swiftchat.engine.gpu.steps.decode_graphs import DecodeGraphs
from swiftchat.engine.linear.adapted import AdapterSet, Selection
from swiftchat.engine.model.decoder import Decoder
from swiftchat.engine.model.kv_cache import KVCache
from swiftchat.engine.schedule.batch import Batch
from swiftchat.engine.schedule.content import Digest
from swiftchat.engine.schedule.sequence import Step
from swiftchat.engine.schedule.tuning import SequenceTuning
from swiftchat.engine.steps.runner import StepInputs, StepLogits
from swiftchat.errors import FileSystemError, OutOfMemory, UsageError
from swiftchat.weights.adapters.adapter import Adapter
from swiftchat.weights.adapters.open import open_adapter
from swiftchat.weights.adapters.soft_prompt import SoftPrompt, open_soft_prompt
from swiftchat.weights.model.checkpoint import Checkpoint
from swiftchat.weights.parallel.tensor_parallel import Shard

MAX_SETS = 16  # of adapters in memory
MAX_PROMPTS = 16  # soft prompts without adapters in memory; sequences keep theirs

_States = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class OpenTuning:
    """What a request names, read as far as checks need it: headers, and no values.

    `loaded` is what is in memory already, else None.
    """

    tuning: Tuning
    adapters: Sequence[tuple[Adapter, float]] = ()
    prompt: SoftPrompt | None = None
    loaded: SequenceTuning | None = None

    @property
    def num_virtual(self) -> int:
        """The number of the soft prompt's virtual tokens."""
        if self.loaded is not None:
            return 0 if self.loaded.virtual is None else self.loaded.virtual.count
        return 0 if self.prompt is None else self.prompt.count


class Tunings:
    """Loads what requests name, and computes the batches whose sequences use it.

    Batches without any run on `decoder` as before. Loaded sets stay in memory until others need
    their place. `graphs` are the captured decode steps of a GPU, None: none have adapters.
    """

    def __init__(
        self,
        decoder: Decoder,
        cache: KVCache,
        shard: Shard,
        checkpoint: Checkpoint | None,
        device: torch.device,
        graphs: DecodeGraphs | None = None,
    ) -> None:
        self._base, self._cache, self._shard = decoder, cache, shard
        self._graphs, self._device = graphs, device
        self._builder = SetBuilder(shard, checkpoint, decoder.weights.dtype, device)
        self.selection = Selection([None] * MAX_SETS)
        self._tuned = tuned_forward(decoder, cache, self.selection)
        # Least recently used first. A file that has changed is another tuning.
        self._loaded: OrderedDict[tuple[Tuning, _States], SequenceTuning] = OrderedDict()
        self._files: dict[Tuning, tuple[Path, ...]] = {}

    @property
    def nbytes(self) -> int:
        """The memory of the loaded adapters."""
        return sum(each.nbytes for each in self.selection.sets if each is not None)

    def open(self, tuning: Tuning | None, in_use: Collection[int]) -> OpenTuning | None:
        """Check what a request names without changing anything; None if it is empty.

        Raises as `open_adapter` does, and `UsageError` for what only a merged model can have, for a
        model that cannot have it, or if the sets `in_use` leave no place.
        """
        if not tuning:
            return None
        config = self._base.config
        if not config.has_even_layers:
            raise UsageError(
                f"adapters and soft prompts are not supported for {config.architecture}",
                "leave out the adapters",
            )
        if config.mixer is not None and tuning.soft_prompt is not None:
            raise UsageError(
                f"soft prompts are not supported for {config.architecture}: it has states",
                "leave out the soft prompt",
            )
        if tuning in self._files:
            loaded = self._loaded.get((tuning, _states(self._files[tuning])))
            if loaded is not None:
                return OpenTuning(tuning, loaded=loaded)
        prompt = self._open_prompt(tuning.soft_prompt)
        adapters = [(self._open(path), scale) for path, scale in tuning.adapters]
        for adapter, _ in adapters:
            self._builder.check(adapter)
        if adapters:
            self._place(in_use)
        return OpenTuning(tuning, adapters, prompt)

    def load(self, tuning: Tuning | None, in_use: Collection[int]) -> SequenceTuning | None:
        """Return what a sequence with this tuning needs, loaded; None if it is empty.

        Raises as `open` and `load_opened` do.
        """
        opened = self.open(tuning, in_use)
        return None if opened is None else self.load_opened(opened, in_use)

    def load_opened(self, opened: OpenTuning, in_use: Collection[int]) -> SequenceTuning:
        """Return what a sequence with this tuning needs, loaded; the sets `in_use` stay.

        Raises `BadModelFile` for damaged values, `OutOfMemory` if there is no memory.
        """
        if opened.loaded is not None:
            key = next(key for key, loaded in self._loaded.items() if loaded is opened.loaded)
            self._loaded.move_to_end(key)
            return opened.loaded
        adapters, prompt, number, virtual = opened.adapters, opened.prompt, -1, None
        try:
            if prompt is not None:
                kv = self._base.weights.dtype
                virtual = virtual_tokens(prompt, self._shard, kv, self._device)
            if adapters:
                number = self._emptied(self._place(in_use))
                self._put(number, self._builder.build(adapters))
        except (MemoryError, torch.OutOfMemoryError) as error:
            raise OutOfMemory(
                "there is no memory for the adapters", "use a smaller --ctx-size"
            ) from error
        loaded = SequenceTuning(_identity(adapters, prompt), number, virtual)
        files = [file for adapter, _ in adapters for file in adapter.files]
        files += [] if prompt is None else prompt.files
        self._files[opened.tuning] = tuple(files)
        self._loaded[opened.tuning, _states(self._files[opened.tuning])] = loaded
        self._forget_prompts()
        return loaded

    def compute(self, inputs: StepInputs) -> StepLogits | None:
        """Compute a step whose sequences use adapters or soft prompts; None for others."""
        if all(row.sequence.tuning is None for row in inputs.step.rows):
            return None
        return StepLogits(self.forward(inputs.batch))

    def forward(self, batch: Batch) -> Tensor | None:
        """As `Decoder.forward`, with the adapters and soft prompts of the batch's sequences."""
        return self._tuned.forward(batch)

    def prepare_blocks(self, step: Step) -> None:
        """Make the copies of a step, and write given keys and values, in the step's order."""
        ops, num_done = self._base.ops, 0
        for stored in step.stored:
            ops.copy_blocks(self._cache, step.copies[num_done : stored.num_copies])
            store_virtual(self._cache, stored.sequence, heads_first=ops.heads_first)
            num_done = stored.num_copies
        ops.copy_blocks(self._cache, step.copies[num_done:])

    def _open_prompt(self, path: str | None) -> SoftPrompt | None:
        return None if path is None else open_soft_prompt(Path(path), self._shard.config)

    def _open(self, path: str) -> Adapter:
        return open_adapter(Path(path), self._shard.config)

    def _forget_prompts(self) -> None:
        prompts = [key for key, loaded in self._loaded.items() if loaded.set_index < 0]
        for key in prompts[:-MAX_PROMPTS]:
            del self._loaded[key]

    def _place(self, in_use: Collection[int]) -> int:
        """Return the number of an empty set, or of the least recently used one."""
        sets = self.selection.sets
        if None in sets:
            return sets.index(None)
        for loaded in self._loaded.values():
            if loaded.set_index >= 0 and loaded.set_index not in in_use:
                return loaded.set_index
        raise UsageError(
            f"{MAX_SETS} different sets of adapters are in use", "wait for an answer to end"
        )

    def _emptied(self, number: int) -> int:
        """Return the number of a set, whose adapters are forgotten."""
        if self.selection.sets[number] is not None:
            for key in [key for key, each in self._loaded.items() if each.set_index == number]:
                del self._loaded[key]
            self._put(number, None)
        return number

    def _put(self, number: int, adapters: AdapterSet | None) -> None:
        self.selection.sets[number] = None  # until all of it is there
        if self._graphs is not None:
            self._graphs.put_adapters(number, adapters, MAX_SETS)
        self._tuned.put(number, adapters)
        self.selection.sets[number] = adapters


def _identity(adapters: Sequence[tuple[Adapter, float]], prompt: SoftPrompt | None) -> Digest:
    """Return the digest of the adapters' content and scales, and of the soft prompt."""
    digest = hashlib.sha256()
    for adapter, scale in adapters:
        digest.update(adapter.digest + struct.pack("<d", scale))
    if prompt is not None:
        digest.update(b"soft prompt" + prompt.digest)
    return digest.digest()


def _states(files: tuple[Path, ...]) -> _States:
    """Return size and time of each file."""
    try:
        found = [file.stat() for file in files]
    except OSError as error:
        raise FileSystemError(f"cannot read {error.filename}: {error.strerror}") from error
    return tuple((each.st_size, each.st_mtime_ns) for each in found)
