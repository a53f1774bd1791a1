"""`benchmarks/heads/train.py` trains heads of a tiny model that an engine then uses."""

import json
import re
import runpy
from pathlib import Path

import pytest

from swiftchat.engine.api.params import SamplingParams
from tests.support import fake_engine, heads, tiny

SCRIPT = Path(__file__).parents[2] / "benchmarks/heads/train.py"
PARAMS = SamplingParams(temperature=0, max_tokens=12, speculate="off")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = fake_engine.make_folder(tmp_path_factory.mktemp("model"))
    tiny.make("llama", folder, vocab_size=258)
    return folder


@pytest.mark.parametrize("kind", ["eagle3", "medusa"])
def test_trained_heads(
    model: Path,
    kind: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = tmp_path / "heads"
    monkeypatch.syspath_prepend(str(SCRIPT.parent))  # as when Python runs the file
    main = runpy.run_path(str(SCRIPT))["main"]
    sizes = ("--tokens", "60", "--max-tokens", "16", "--rows", "4", "--draft-vocab", "64")
    options = ("--kind", kind, "--max-steps", "3", "--threads", "1")
    main([str(model), str(out), *sizes, *options])
    printed = capsys.readouterr().out
    assert re.search(r"trained 3 steps of 4 conversations", printed)
    if kind == "eagle3":
        assert json.loads((out / "config.json").read_text())["draft_vocab_size"] == 64
    prompts = {1: tiny.random_ids(20)}
    expected, _ = tiny.run(tiny.engine(model), prompts, PARAMS)
    engine = tiny.engine(model, draft=str(out))
    proposals = heads.propose_always(engine)
    params = SamplingParams(temperature=0, max_tokens=12, speculate="draft")
    ids, ends = tiny.run(engine, prompts, params)
    assert ids == expected
    assert ends[1].speculated.proposer == kind
    assert all(proposed for _, proposed in proposals)
