"""How one model runs here: its engine is built as for a chat; every part says what computes it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from swiftchat.engine.api.params import EngineConfig
from swiftchat.engine.doctor.diagnosis import Check
from swiftchat.engine.generation.build import build_engine
from swiftchat.engine.generation.engine import Engine
from swiftchat.engine.linear.weight import LinearWeight
from swiftchat.engine.model.weights import DecoderWeights
from swiftchat.weights.architectures.parts.model import ModelConfig
from swiftchat.weights.architectures.tensors import (
    layer_tensors,
    tensor_name,
    tensors_after_layers,
    tensors_before_layers,
)
from swiftchat.weights.model.checkpoint import Checkpoint


def model_checks(path: Path, device: str, cubins: Path | None) -> list[Check]:
    """Load the model at `path` and return a row for each of its parts.

    Raises the errors of `build_engine`.
    """
    return engine_checks(build_engine(path, EngineConfig(device=device), cubins=cubins))


def engine_checks(engine: Engine) -> list[Check]:
    """Return the rows of an engine's model: its memory, what computes it, and its matrices."""
    info, config = engine.info, engine.decoder.config
    summary = (
        f"{config.architecture}, {info.num_parameters / 1e6:.0f}M parameters; weights "
        f"{info.weights_bytes / 1e6:.0f} MB, cache of {info.cache_tokens} tokens in "
        f"{info.kv_dtype} {info.cache_bytes / 1e6:.0f} MB, "
        f"activations {info.workspace_bytes / 1e6:.0f} MB"
    )
    is_slow = engine.back_end.is_reference
    hint = "torch's operators take several times as long as the kernels" if is_slow else ""
    computed_by = Check("computed by", "note" if is_slow else "ok", info.device, hint)
    return [Check("model", "ok", summary), computed_by, *_matrix_checks(engine)]


@dataclass(frozen=True)
class _Matrix:
    """A matrix of the decoder: the part that it belongs to, and how its tensors are stored."""

    part: str
    layer: int | None
    stored: str
    weight: LinearWeight

    @property
    def is_dequantized(self) -> bool:
        return self.stored.upper() not in _FLOATS and not self.weight.is_quantized

    @property
    def text(self) -> str:
        description = self.weight.description
        return f"{self.stored} in the file, {description}" if self.stored else description


_FLOATS = ("", "F64", "F32", "F16", "BF16")


def _matrix_checks(engine: Engine) -> Iterator[Check]:
    """Return a row for the matrices of each part that are stored and computed alike."""
    why = "there are no kernels" if engine.back_end.is_reference else "no kernel has this format"
    matrices = _matrices(engine.decoder.weights, _Tensors(engine.decoder.config, engine.checkpoint))
    parts: dict[str, dict[tuple[str, bool], list[int | None]]] = {}
    for matrix in matrices:
        alike = parts.setdefault(matrix.part, {})
        alike.setdefault((matrix.text, matrix.is_dequantized), []).append(matrix.layer)
    for part, alike in parts.items():
        for (text, is_dequantized), layers in alike.items():
            where = f"; {_layers(layers)}" if len(alike) > 1 else ""
            hint = f"{why}: dequantized when loaded"
            yield Check(
                part,
                "note" if is_dequantized else "ok",
                f"{text}{where}",
                hint if is_dequantized else "",
            )


def _matrices(weights: DecoderWeights, tensors: "_Tensors") -> Iterator[_Matrix]:
    is_tied = weights.lm_head is weights.embed
    name = "embeddings, LM head" if is_tied else "embeddings"
    yield _Matrix(name, None, tensors.stored(["embed"]), weights.embed)
    for i, layer in enumerate(weights.layers):
        found = [
            ("q, k, v", ["qkv", "q", "k", "v", "q_a", "kv_a"], layer.qkv),
            ("attention output", ["o"], layer.o),
            ("gate, up", ["gate_up", "gate", "up"], layer.gate_up),
            ("down", ["down"], layer.down),
        ]
        if layer.latent is not None and layer.latent.q_b is not None:
            found.append(("queries of latents", ["q_b"], layer.latent.q_b))
        if layer.attn_gate is not None:
            found.append(("attention gate", ["attn_gate"], layer.attn_gate))
        shared = None if layer.experts is None else layer.experts.shared
        if shared is not None:
            gate_up = ["shared_gate_up", "shared_gate", "shared_up"]
            found.append(("shared expert: gate, up", gate_up, shared.gate_up))
            found.append(("shared expert: down", ["shared_down"], shared.down))
        for expert in layer.experts.each if layer.experts is not None else ():
            gate_up = ["expert_gate", "expert_up", "experts_gate_up"]
            found.append(("experts: gate, up", gate_up, expert.gate_up))
            found.append(("experts: down", ["expert_down", "experts_down"], expert.down))
        for part, canonical, weight in found:
            if weight.shape[0]:  # the MLP of a layer with experts is empty
                yield _Matrix(part, i, tensors.stored(canonical, i), weight)
    if not is_tied:
        yield _Matrix("LM head", None, tensors.stored(["lm_head"]), weights.lm_head)


@dataclass(frozen=True)
class _Tensors:
    """The tensors of a model's checkpoint, if it has one."""

    config: ModelConfig
    checkpoint: Checkpoint | None

    def stored(self, canonical: Sequence[str], layer: int | None = None) -> str:
        """Return the formats in which the file stores these tensors of a layer."""
        outside = [*tensors_before_layers(self.config), *tensors_after_layers(self.config)]
        known = outside if layer is None else layer_tensors(self.config, layer)
        names = [tensor_name(self.config, n, layer, 0) for n in canonical if n in known]
        return " + ".join(dict.fromkeys(filter(None, map(self._format, names))))

    def _format(self, name: str) -> str:
        if self.checkpoint is None:
            return ""
        if quantized := self.checkpoint.quantized.get(name):
            return quantized.format
        info = self.checkpoint.tensors.get(name)
        return info.dtype if info is not None else ""


def _layers(layers: Sequence[int | None]) -> str:
    """Return `layers 0-3, 7`."""
    numbers = [i for i in dict.fromkeys(layers) if i is not None]
    runs = []
    for _, group in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        run = [number for _, number in group]
        runs.append(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}")
    return f"layers {', '.join(runs)}"
