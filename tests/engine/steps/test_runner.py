"""The first step runner that takes a step computes it."""

from swiftchat.engine.api.params import SamplingParams
from swiftchat.engine.schedule.sequence import Row, Step, TokenSequence
from swiftchat.engine.steps.runner import SampledStep, StepInputs, StepLogits, first_result


class Runner:
    """Takes steps of at most `most` rows."""

    def __init__(self, most: int, token: int) -> None:
        self._most, self._token = most, token
        self.num_asked = 0

    def compute(self, inputs: StepInputs) -> SampledStep | None:
        self.num_asked += 1
        rows = inputs.step.rows
        return SampledStep(rows, [[self._token]] * len(rows)) if len(rows) <= self._most else None


class Plain:
    def compute(self, inputs: StepInputs) -> StepLogits:
        return StepLogits()


def inputs_of(num_rows: int) -> StepInputs:
    sequences = [TokenSequence(i, [5, 6], SamplingParams()) for i in range(num_rows)]
    for sequence in sequences:
        sequence.num_computed, sequence.block_table = 1, [sequence.id]
    return StepInputs(Step([Row(s, 1) for s in sequences], []), [0] * num_rows, 4)


def test_runners_are_asked_in_order_until_one_takes_the_step() -> None:
    few, many = Runner(1, 7), Runner(2, 8)
    runners = [few, many, Plain()]
    one, two, three = (inputs_of(n) for n in (1, 2, 3))
    assert first_result(runners, one) == SampledStep(one.step.rows, [[7]])
    assert many.num_asked == 0
    assert first_result(runners, two) == SampledStep(two.step.rows, [[8]] * 2)
    assert first_result(runners, three) == StepLogits()
    assert (few.num_asked, many.num_asked) == (3, 2)


def test_the_batch_is_packed_once() -> None:
    inputs = inputs_of(2)
    assert inputs.batch is inputs.batch
    assert inputs.batch.ids == [6, 6] and inputs.batch.slot_mapping == [1, 5]
