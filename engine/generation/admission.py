"""From a request to a sequence: checks, grammars, adapters."""

from collections.abc import Mapping

from swiftchat.engine.adapters.tunings import OpenTuning
from swiftchat.engine.api.params import SamplingParams
from swiftchat.engine.api.tuning import Tuning
from swiftchat.engine.api.vocabulary import ConstraintSpec
from swiftchat.engine.comm.agreement import on_all_ranks
from swiftchat.engine.generation.beams import Beams
from swiftchat.engine.generation.check import check_request, check_tuned
from swiftchat.engine.generation.generation import Generation
from swiftchat.engine.generation.parts import EngineParts
from swiftchat.engine.schedule.constraint import Constraint
from swiftchat.engine.schedule.sequence import TokenSequence
from swiftchat.engine.schedule.tuning import SequenceTuning
from swiftchat.errors import OutOfMemory
from swiftchat.weights.architectures.parts.prefix_lm import CAUSAL


class Admission:
    """Checks requests and makes their sequences; `generations` are those that are not over."""

    def __init__(
        self, parts: EngineParts, beams: Beams, generations: Mapping[int, Generation]
    ) -> None:
        self._config, self._ctx_size_tokens = parts.decoder.config, parts.info.ctx_size_tokens
        self._beams, self._generations = beams, generations
        self._ranks, self._stages = parts.decoder.ranks, parts.decoder.stages
        self._grammars, self._tunings = parts.grammars, parts.tunings

    def check(
        self,
        prompt: list[int],
        params: SamplingParams,
        spec: ConstraintSpec | None,
        tuning: Tuning | None,
    ) -> tuple[SamplingParams, Constraint | None, OpenTuning | None]:
        """Raise `UsageError` or `ContextOverflow` for a prompt that cannot be answered.

        Returns the parameters and the constraint of the answer, and what the sequence adds to the
        base model, not loaded. Also raises `UsageError` for an invalid grammar, and as
        `Tunings.open` does.
        """
        check_request(prompt, params, self._config, self._ctx_size_tokens)
        self._beams.check(params, spec)
        constraint = None if spec is None else self._grammars.constraint(spec)
        opened = self._tunings.open(tuning, self._sets_in_use())
        if opened is not None:
            params = check_tuned(prompt, params, opened.num_virtual, self._ctx_size_tokens)
        return params, constraint, opened

    def tune(self, tuning: Tuning | None) -> SequenceTuning | None:
        """Load adapters and a soft prompt; raises as `Tunings.load` does."""
        return self._tunings.load(tuning, self._sets_in_use())

    def sequence(
        self,
        generation_id: int,
        prompt: list[int],
        params: SamplingParams,
        spec: ConstraintSpec | None,
        tuning: Tuning | None,
    ) -> TokenSequence:
        """Return the sequence of a request, with its tuning loaded on all ranks and stages.

        Raises as `check` and `Tunings.load_opened` do, on all ranks if on one.
        """

        def admit() -> tuple[SamplingParams, Constraint | None, SequenceTuning | None]:
            changed, constraint, opened = self.check(prompt, params, spec, tuning)
            if opened is None:
                return changed, constraint, None
            return changed, constraint, self._tunings.load_opened(opened, self._sets_in_use())

        # All ranks check the same request, but each reads its own files to its own memory.
        failure = OutOfMemory(
            "another rank could not load the adapters",
            "use a smaller --ctx-size; on several hosts, check that each has the files",
        )
        params, constraint, tuned = (
            on_all_ranks(self._ranks, self._stages, admit, failure) if tuning else admit()
        )
        prefix_lm = self._config.prefix_lm
        prefix = CAUSAL if prefix_lm is None else prefix_lm.prefix_of(prompt)
        tokens = list(prompt) if tuned is None else tuned.placeholders(prompt) + prompt
        return TokenSequence(generation_id, tokens, params, prefix, constraint, tuned)

    def _sets_in_use(self) -> set[int]:
        """Return the numbers of the sets of adapters that answers use."""
        sequences = [generation.sequence for generation in self._generations.values()]
        return {each.tuning.set_index for each in sequences if each.tuning is not None}
