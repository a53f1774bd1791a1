"""Work that succeeds on all ranks or on none, with ranks that are threads."""

import pytest

from swiftchat.engine.comm.agreement import on_all_ranks
from swiftchat.engine.comm.pipeline import SingleStage
from swiftchat.errors import BadModelFile, OutOfMemory, SwiftchatError
from tests.support.thread_communicator import ThreadCommunicator, run_ranks


@pytest.mark.parametrize("failing", [set(), {0}, {1}, {0, 2}, {0, 1, 2}])
def test_work_that_fails_on_one_rank_fails_on_all(failing: set[int]) -> None:
    def work(rank: int) -> int:
        if rank in failing:
            raise BadModelFile(f"rank {rank}")
        return rank

    def run(rank: int, ranks: ThreadCommunicator) -> int | str:
        try:
            return on_all_ranks(ranks, SingleStage(), lambda: work(rank), OutOfMemory("elsewhere"))
        except SwiftchatError as error:
            assert isinstance(error, BadModelFile if rank in failing else OutOfMemory)
            return error.message

    expected = [f"rank {rank}" if rank in failing else "elsewhere" for rank in range(3)]
    assert run_ranks(3, run) == (expected if failing else [0, 1, 2])
