"""The states of sequences in layers without keys and values, and the rows of a batch by state."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from swiftchat.engine.schedule.batch import Span
from swiftchat.weights.architectures.parts.model import ModelConfig

LayerStates = tuple[Tensor, ...]


class StateCache:
    """The states of all layers with a `StateMixer`, allocated once.

    `tensors` are fp32 [num such layers, num_slots, ...], `layers[i]` those of layer i. On the CPU
    the system commits the memory of a slot when it is first written.
    """

    def __init__(self, config: ModelConfig, num_slots: int, device: torch.device) -> None:
        numbers = config.mixer_layers
        shapes = () if config.mixer is None else config.mixer.states
        self.tensors: LayerStates = tuple(
            torch.empty(len(numbers), num_slots, *shape, device=device) for shape in shapes
        )
        self.layers: Mapping[int, LayerStates] = {
            number: tuple(tensor[i] for tensor in self.tensors) for i, number in enumerate(numbers)
        }
        self.num_bytes = sum(tensor.nbytes for tensor in self.tensors)

    def copy(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copy whole slots, (source, destination), in all layers, one after the other."""
        for source, destination in copies:
            if source != destination:
                for tensor in self.tensors:
                    tensor[:, destination] = tensor[:, source]


def bytes_per_sequence(config: ModelConfig) -> int:
    """Return the bytes of one sequence's states in all layers."""
    shapes = () if config.mixer is None else config.mixer.states
    return 4 * len(config.mixer_layers) * sum(map(math.prod, shapes))


@dataclass(frozen=True)
class StateRows:
    """Equally many new tokens of `num_seqs` sequences: rows of a batch, one sequence after another.

    `slots` [num_seqs] hold the states before these tokens, `next_slots` receive those after them;
    `is_first`: the sequences begin with these tokens, so their states are zero.
    """

    rows: Tensor
    num_seqs: int
    slots: Tensor
    next_slots: Tensor
    is_first: bool

    def read(self, states: LayerStates) -> LayerStates:
        """Return the states before the tokens: each [num_seqs, ...]."""
        if self.is_first:
            return tuple(each.new_zeros(self.num_seqs, *each.shape[1:]) for each in states)
        return tuple(each.index_select(0, self.slots) for each in states)

    def write(self, states: LayerStates, after: LayerStates) -> None:
        for tensor, values in zip(states, after, strict=True):
            tensor.index_copy_(0, self.next_slots, values)


def plan_states(spans: Sequence[Span], device: torch.device) -> list[StateRows]:
    """Group the rows of a batch: all decode steps together, every longer row by itself.

    Tokens of a row whose states are all kept are decode steps one after the other.
    """
    groups = list[StateRows]()
    rounds = list[list[_Step]]()
    for span in spans:
        is_first, steps = span.num_tokens == span.context_len, _steps(span)
        if not steps:
            groups.append(_prompt(span, device, is_first=is_first))
        for i, step in enumerate(steps):
            if is_first and i == 0:
                groups.append(_group([step], device, is_first=True))
                continue
            rounds += [[] for _ in range(i + 1 - len(rounds))]
            rounds[i].append(step)
    return [*groups, *(_group(steps, device) for steps in rounds if steps)]


_Step = tuple[int, int, int]  # a row of the batch, and the slots before and after it


def _steps(span: Span) -> list[_Step]:
    """Return the tokens of a row with single steps; none for one that is scanned."""
    if span.num_tokens > 1 and not span.after_slots:
        return []
    return [(row, *pair) for row, pair in enumerate(span.step_slots, span.start)]


def _group(steps: Sequence[_Step], device: torch.device, *, is_first: bool = False) -> StateRows:
    columns = zip(*steps, strict=True)
    rows, slots, next_slots = (torch.tensor(column, device=device) for column in columns)
    return StateRows(rows, len(steps), slots, next_slots, is_first)


def _prompt(span: Span, device: torch.device, *, is_first: bool) -> StateRows:
    rows = torch.arange(span.start, span.start + span.num_tokens, device=device)
    slots = torch.tensor([[span.state_slot], [span.next_state_slot]], device=device)
    return StateRows(rows, 1, slots[0], slots[1], is_first)
