"""Compare all decoder-only architectures of transformers, with variants of every key, by hand.

`python -m tests.sweep [MODEL_TYPE …]` prints a line for each architecture and one for each variant
that is neither equal nor refused; `--base` leaves the variants out. The exit code is 1 if a model
is wrong or fails otherwise. All variants of all architectures take about ten minutes.
"""

import argparse
import json
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.support import reference
from tests.support.config_variants import variants


def compare(model_type: str, folder: Path, *, base_only: bool) -> Counter[str]:
    """Return the number of configurations by their result; print those that are wrong."""
    counts: Counter[str] = Counter()
    try:
        expected = reference.copy_reference(model_type, folder)
    except reference.NoReferenceError:
        counts["no reference"] += 1
        return counts
    result = reference.outcome(folder, expected)
    _count(counts, result, model_type, {})
    if base_only or not result.startswith("equal"):
        return counts
    config_file = folder / "config.json"
    text = config_file.read_text()
    for edit in variants(json.loads(text)):
        config_file.write_text(text)
        reference.edit_config(folder, **edit)
        try:
            loaded = reference.load_reference(model_type, folder)
            expected = reference.reference_logits(loaded, reference.prompt_ids())
        except reference.NoReferenceError:
            counts["no reference"] += 1
            continue
        _count(counts, reference.outcome(folder, expected), model_type, edit)
    return counts


def _count(counts: Counter[str], result: str, model_type: str, edit: dict[str, object]) -> None:
    kind, _, detail = result.partition(":")
    counts[kind] += 1
    if kind not in ("equal", "refused"):
        print(f"{kind}: {model_type} {json.dumps(edit)}:{detail}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sweep", description=__doc__)
    parser.add_argument("model_types", nargs="*", metavar="MODEL_TYPE")
    parser.add_argument("--base", action="store_true", help="one configuration for each")
    arguments = parser.parse_args()
    total: Counter[str] = Counter()
    model_types = arguments.model_types or dict.fromkeys(
        [*reference.CAUSAL_TYPES, *reference.MULTIMODAL_TYPES]
    )
    for model_type in model_types:
        with tempfile.TemporaryDirectory() as folder:
            counts = compare(model_type, Path(folder), base_only=arguments.base)
        print(f"{model_type:24} {', '.join(f'{n} {kind}' for kind, n in counts.items())}")
        total += counts
    print(", ".join(f"{n} {kind}" for kind, n in total.items()))
    return int(bool(total["wrong"] or total["error"]))


if __name__ == "__main__":
    sys.exit(main())
