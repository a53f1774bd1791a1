"""Merge adapters into the weights of a model that is converted."""

import dataclasses
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from swiftchat.errors import BadModelFile
from swiftchat.weights.adapters.adapter import Adapter, LowRank
from swiftchat.weights.adapters.open import open_adapter
from swiftchat.weights.architectures.config import read_model_config
from swiftchat.weights.architectures.parts.model import ModelConfig
from swiftchat.weights.architectures.registry import ARCHITECTURES
from swiftchat.weights.architectures.tensors import expected_tensors, tensor_name
from swiftchat.weights.files.reading import encode_json
from swiftchat.weights.formats.arrays import Floats
from swiftchat.weights.sources.plan import Plan

Weighted = tuple[Adapter, float]


def merge_adapters(plan: Plan, adapters: Sequence[tuple[Path, float]]) -> Plan:
    """Return the plan with the changes of adapters, each times its scale, added to the weights.

    If the head is tied to the embeddings and only one of them changes, it gets a tensor of its own.
    Raises as `open_adapter` does.
    """
    config_json = json.loads(plan.files["config.json"])
    config = read_model_config(config_json)
    opened = [(open_adapter(path, config), scale) for path, scale in adapters]
    shapes, files = dict(plan.shapes), dict(plan.files)
    embed, head = tensor_name(config, "embed"), tensor_name(config, "lm_head")
    changed = {name for adapter, _ in opened for name in _changed_tensors(adapter, config)}
    is_untied = bool(config.head.tied and changed & {embed, head})
    # Rows of tokens change a tied head in the same way.
    changed |= {rows.tensor for adapter, _ in opened for rows in adapter.token_rows}
    if is_untied:
        changed.add(head)
        config_json["tie_word_embeddings"] = False
        files["config.json"] = encode_json(config_json)
        untied = read_model_config(config_json)
        shapes = {name: shapes.get(name, shapes[embed]) for name in expected_tensors(untied)}

    def chunks(name: str) -> Iterator[Floats]:
        stored = embed if name == head and name not in plan.shapes else name
        if name not in changed:
            yield from plan.chunks(stored)
            return
        base = np.concatenate([chunk.reshape(-1) for chunk in plan.chunks(stored)])
        yield _merged(base.reshape(shapes[name]), name, opened, config).reshape(-1)

    return dataclasses.replace(
        plan,
        files=files,
        shapes=shapes,
        chunks=chunks,
        source_files=[*plan.source_files, *(f for adapter, _ in opened for f in adapter.files)],
        fingerprint=json.dumps([scale for _, scale in opened]),
    )


def _changed_tensors(adapter: Adapter, config: ModelConfig) -> set[str]:
    """Return the names of the tensors with low-rank changes, biases, or other values.

    Raises `BadModelFile` for a bias that the model has no tensor for.
    """
    replaced = {tensor_name(config, *key) for key in adapter.replaced}
    shapes = expected_tensors(config)
    biases = {_bias_name(change) for change in adapter.low_rank if change.bias is not None}
    missing = sorted(biases - shapes.keys())
    if missing:
        raise BadModelFile(
            f"{adapter.path} adds a bias, but the model has no tensor {missing[0]} for it",
            f"use the adapter without merging it: --lora {adapter.path}",
        )
    return replaced | biases | {change.tensor for change in adapter.low_rank}


def _bias_name(change: LowRank) -> str:
    return f"{change.tensor.removesuffix('.weight')}.bias"


def _merged(base: Floats, name: str, adapters: Sequence[Weighted], config: ModelConfig) -> Floats:
    """Return a tensor with all changes, each computed from the base."""
    merged = base.astype(np.float32, copy=True)
    for adapter, scale in adapters:
        for change in adapter.low_rank:
            if change.tensor == name:
                merged += np.float32(scale) * (_changed(base, change, config) - base)
            if change.bias is not None and _bias_name(change) == name:
                merged += np.float32(scale * change.scale) * change.bias()
        for rows in adapter.token_rows:
            is_tied_head = config.head.tied and name == tensor_name(config, "lm_head")
            if rows.tensor == name or is_tied_head:
                merged[list(rows.ids)] += np.float32(scale) * rows.difference(base)
        for key, read in adapter.replaced.items():
            if tensor_name(config, *key) == name:
                merged += np.float32(scale) * (read() - base)
    return merged


def _changed(base: Floats, change: LowRank, config: ModelConfig) -> Floats:
    """Return the matrix that replaces `base`, in the file's orientation."""
    is_table = change.key[0] in ("embed", "positions")
    is_transposed = (change.key[0] in ARCHITECTURES[config.architecture].transposed) != is_table
    matrix = base.T if is_transposed else base
    new: Floats = matrix + np.float32(change.scale) * (change.b() @ change.a())
    if change.magnitude is not None:
        new *= (change.magnitude() / np.linalg.norm(new, axis=1))[:, None]
    return new.T if is_transposed else new
