"""Adapters made by PEFT for tiny models, and the logits of our engine with them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

from swiftchat.engine.api.params import SamplingParams
from swiftchat.engine.api.protocol import Finished, Tokens
from swiftchat.engine.api.tuning import Tuning
from swiftchat.engine.generation.engine import Engine
from swiftchat.engine.schedule.batch import Batch
from swiftchat.engine.schedule.sequence import TokenSequence
from swiftchat.engine.schedule.tuning import SequenceTuning
from swiftchat.errors import SwiftchatError

# The modules with matrices in each family.
ATTENTION_AND_MLP = {
    "llama": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    "gpt2": ["c_attn", "c_proj", "c_fc"],
    "gpt-neox": ["query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"],
    "phi3": ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"],
}


def targets(family: str) -> list[str]:
    return ATTENTION_AND_MLP.get(family, ATTENTION_AND_MLP["llama"])


def make_adapter(
    folder: Path, reference: transformers.PreTrainedModel, seed: int = 0, **settings: Any
) -> tuple[Path, torch.nn.Module]:
    """Save a random LoRA adapter in `folder`; return it and the model with the adapter."""
    torch.manual_seed(seed)
    import peft  # here: with bitsandbytes it takes seconds

    config = peft.LoraConfig(**{"r": 4, "lora_alpha": 6, "task_type": "CAUSAL_LM", **settings})
    model = peft.get_peft_model(reference, config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_magnitude" in name:
                parameter.mul_(1 + 0.5 * torch.rand_like(parameter))
            elif "lora_" in name or "modules_to_save" in name:
                parameter.copy_(0.2 * torch.randn_like(parameter))
            elif parameter.requires_grad:
                parameter.add_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    return folder, model.eval()


def make_soft_prompt(
    folder: Path,
    reference: transformers.PreTrainedModel,
    kind: str,
    num_tokens: int,
    **settings: object,
) -> tuple[Path, torch.nn.Module]:
    """Save a random soft prompt of this class of PEFT in `folder`.

    Return the folder and the model with the prompt.
    """
    import peft

    config = getattr(peft, kind)(num_virtual_tokens=num_tokens, task_type="CAUSAL_LM", **settings)
    torch.manual_seed(0)
    model = peft.get_peft_model(reference, config)
    with torch.no_grad():
        for parameter in model.prompt_encoder.parameters():
            parameter.copy_(0.5 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    return folder, model.eval()


def change_settings(folder: Path, **changes: Any) -> None:
    """Change keys of `adapter_config.json`."""
    file = folder / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def tuning_of(*adapters: Path, scales: Sequence[float] = ()) -> Tuning:
    scales = scales or [1.0] * len(adapters)
    return Tuning(tuple((str(path), scale) for path, scale in zip(adapters, scales, strict=True)))


@torch.inference_mode()
def logits(
    engine: Engine, prompts: Sequence[tuple[list[int], Tuning | None]]
) -> list[torch.Tensor]:
    """Compute prompts in one batch; return the logits after each of their tokens."""
    sequences = [_sequence(i, ids, engine.tune(tuning)) for i, (ids, tuning) in enumerate(prompts)]
    found: list[list[torch.Tensor]] = [[] for _ in sequences]
    for sequence in sequences:
        engine.scheduler.add(sequence)
    while engine.scheduler.has_work:
        step = engine.scheduler.schedule()
        engine.tunings.prepare_blocks(step)
        batch = Batch.pack(step.rows, engine.config.block_size)
        rows = engine.logits(step)
        assert rows is not None
        for scored in batch.scored:
            end = scored.start + len(scored.targets)
            found[scored.row.sequence.id].append(rows[scored.start : end].clone())
        for i, row in zip(batch.sampled_logits, batch.sampled_rows, strict=True):
            found[row.sequence.id].append(rows[i : i + 1].clone())
        for row in step.rows:
            engine.scheduler.advance(row)
            if row.sequence.num_computed == len(row.sequence.tokens):
                engine.scheduler.remove(row.sequence)
    engine.scheduler.check_integrity()
    return [torch.cat(each) for each in found]


def _sequence(number: int, ids: list[int], tuned: SequenceTuning | None) -> TokenSequence:
    tokens = (tuned.placeholders(ids) if tuned is not None else []) + ids
    return TokenSequence(number, tokens, SamplingParams(prompt_logprobs=0), tuning=tuned)


def greedy(engine: Engine, prompts: Sequence[tuple[list[int], Tuning | None]]) -> list[list[int]]:
    """Generate eight tokens for all prompts together."""
    found: dict[int, list[int]] = {i: [] for i in range(len(prompts))}
    for i, (ids, tuning) in enumerate(prompts):
        params = SamplingParams(temperature=0, max_tokens=8)
        engine.add(i, list(ids), params, tuning=tuning)
    while engine.has_work:
        for i, event in engine.step():
            assert not isinstance(event, SwiftchatError)
            if isinstance(event, Tokens):
                found[i] += event.ids
    return list(found.values())


def finished(engine: Engine, ids: list[int], tuning: Tuning) -> dict[str, Any]:
    """Generate a token; return the counts of the engine's report."""
    engine.add(0, list(ids), SamplingParams(temperature=0, max_tokens=1), tuning=tuning)
    events = []
    while engine.has_work:
        events += [event for _, event in engine.step()]
    assert isinstance(events[-1], Finished)
    return dict(vars(events[-1]))
