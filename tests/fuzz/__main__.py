"""Read mutated files and messages, by hand or from the tests.

`python -m tests.fuzz --seconds N` reads cases of all formats for N seconds, `--cases N` so many
cases, shared among the formats as in CI. `--format NAME` limits both to some formats, `--seed S`
chooses the cases; the same seed gives the same ones. Each failing input is written to
`tests/fuzz/regressions/FORMAT/`, one for each reason, which `--regressions` and the tests read for
ever; with `--regressions` other cases are read only if `--cases` or `--seconds` asks for them. The
exit code is 1 if a case failed.
"""

import argparse
import hashlib
import os
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

# Forked processes have one thread only, so no library may count on more.
os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

from tests.fuzz.target import Target, case
from tests.fuzz.targets import TARGETS
from tests.fuzz.worker import Failure, Limits, Result, run_cases

_REGRESSIONS = Path(__file__).parent / "regressions"
_kept: set[Path] = set()  # of this run
_BATCH = 400  # cases of one process
_COLUMNS = ("cases", "accepted", "compared", "refused", "failures")


def _run(target: Target, seed: int, start: int, count: int) -> Result:
    """Run a batch of cases; write the inputs of the failures."""
    data = partial(case, target, seed)
    result = run_cases(target, range(start, start + count), data, Limits())
    for failure in result.failures:
        _keep(target, failure, data(failure.index), f"seed {seed}, case {failure.index}")
    return result


def _keep(target: Target, failure: Failure, data: bytes, name: str) -> None:
    """Print the reason of a failure and write its input, once for each reason.

    Values can differ in many ways, so all inputs with a difference are kept.
    """
    kind = failure.reason.partition(": ")[0]
    identity = data if kind == "difference" else kind.encode()
    digest = hashlib.sha256(identity).hexdigest()[:12]
    path = _REGRESSIONS / target.name / digest
    if path in _kept:
        return
    _kept.add(path)
    print(f"FAILURE {target.name}, {name}: {failure.reason}\n{failure.detail}", flush=True)
    if not path.exists() or len(data) < path.stat().st_size:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        print(f"kept as {path}", flush=True)


def _run_regressions(target: Target) -> Result:
    """Run the valid inputs, which must be accepted, and the kept ones."""
    valid = target.inputs()
    files = sorted((_REGRESSIONS / target.name).glob("*"))
    result = run_cases(target, range(len(valid)), valid.__getitem__, Limits())
    if result.counts["accepted"] != len(valid):
        result.failures.append(Failure(0, f"of {len(valid)} valid inputs some were refused"))
        result.counts["failures"] += 1
    for failure in result.failures:
        print(f"FAILURE {target.name}: {failure.reason}\n{failure.detail}", flush=True)
    kept = run_cases(target, range(len(files)), lambda i: files[i].read_bytes(), Limits())
    for failure in kept.failures:
        print(f"FAILURE {files[failure.index]}: {failure.reason}\n{failure.detail}", flush=True)
    result.add(kept)
    return result


def _run_all(
    targets: Sequence[Target], seed: int, num_cases: int | None, seconds: float | None
) -> dict[str, Result]:
    """Run the formats in turns, so that each has its share whenever this ends."""
    results = {target.name: Result() for target in targets}
    done = dict.fromkeys(results, 0)
    total = sum(target.cases for target in targets)
    due = {t.name: -(-(num_cases or 0) * t.cases // total) for t in targets}
    end = None if seconds is None else time.monotonic() + seconds
    while True:
        is_working = False
        for target in targets:
            count = max(1, round(_BATCH * target.cases * len(targets) / total))
            if num_cases is not None:
                count = min(count, due[target.name] - done[target.name])
            if count <= 0 or (end is not None and time.monotonic() > end):
                continue
            is_working = True
            results[target.name].add(_run(target, seed, done[target.name], count))
            done[target.name] += count
        if not is_working:
            return results
        if seconds is not None:
            _print_table(results)


def _print_table(results: dict[str, Result]) -> None:
    print(f"{'format':24}" + "".join(f"{name:>10}" for name in _COLUMNS) + f"{'CPU s':>10}")
    total = Result()
    for name, result in results.items():
        total.add(result)
        _print_line(name, result)
    _print_line("all", total)


def _print_line(name: str, result: Result) -> None:
    counts = "".join(f"{result.counts[column]:10}" for column in _COLUMNS)
    print(f"{name:24}{counts}{result.cpu_s:10.1f}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seconds", type=float, help="time to run")
    parser.add_argument("--cases", type=int, help="number of cases; default: as in CI")
    parser.add_argument("--format", action="append", choices=TARGETS, help="repeatable")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--regressions", action="store_true", help="read the kept inputs")
    arguments = parser.parse_args()
    targets = [TARGETS[name] for name in arguments.format or TARGETS]
    results = {target.name: Result() for target in targets}
    if arguments.regressions:
        for target in targets:
            results[target.name].add(_run_regressions(target))
    cases = arguments.cases
    if cases is None and arguments.seconds is None and not arguments.regressions:
        cases = sum(target.cases for target in targets)
    if cases is not None or arguments.seconds is not None:
        for name, result in _run_all(targets, arguments.seed, cases, arguments.seconds).items():
            results[name].add(result)
    _print_table(results)
    return 1 if any(result.failures for result in results.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
