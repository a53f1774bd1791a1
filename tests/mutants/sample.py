"""A random sample of mutants of the product, and the share that the tests notice.

`python -m tests.mutants.sample choose FILE` chooses mutants and writes them to FILE (JSON),
`apply FILE` puts them all into this working tree, switched off, and the switch into this virtual
environment, `record FILE` runs the whole suite and notes which tests reach which mutant, `run FILE`
switches one mutant on at a time, runs the tests that reach it, and prints a table. `together`
switches all those of `--only` on, for tests that are too expensive to run for each. `remove` undoes
`apply`. The same FILE applies to a later tree, where lines may have moved; what is gone is named.
"""

import argparse
import json
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import asdict
from pathlib import Path

from tests.mutants import switch
from tests.mutants.measure import FOLDER, Measurement
from tests.mutants.places import PACKAGES
from tests.mutants.schemata import Sampled, choose, splice

ROOT = Path(__file__).parents[2]
_SITE = Path(sysconfig.get_path("purelib"))
_SWITCH = _SITE / "swiftchat_mutants.py"


def _load(file: Path) -> list[Sampled]:
    return [Sampled(**fields) for fields in json.loads(file.read_text())]


def _apply(mutants: list[Sampled]) -> None:
    subprocess.run(["git", "diff", "--exit-code", "--stat", "--", *PACKAGES], cwd=ROOT, check=True)
    for mutant in splice(ROOT, mutants):
        print(f"gone: {mutant.number} {mutant.file}: {mutant.context}")
    FOLDER.mkdir(exist_ok=True)
    shutil.copy(switch.__file__, _SWITCH)
    _SWITCH.with_suffix(".pth").write_text(f"import {_SWITCH.stem}\n")


def _remove() -> None:
    subprocess.run(["git", "checkout", "--quiet", "--", *PACKAGES], cwd=ROOT, check=True)
    shutil.rmtree(FOLDER, ignore_errors=True)
    for file in (_SWITCH, _SWITCH.with_suffix(".pth")):
        file.unlink(missing_ok=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "action", choices=("choose", "apply", "record", "run", "together", "remove")
    )
    parser.add_argument("file", type=Path, help="the chosen mutants; notes and results beside it")
    parser.add_argument("tests", nargs="*", help="arguments of pytest, after --")
    parser.add_argument("--seed", type=int, default=38)
    parser.add_argument("--number", type=int, default=60)
    parser.add_argument("--processes", default="2", help="of pytest, for many tests")
    parser.add_argument("--only", type=int, nargs="*", help="numbers of the mutants to run")
    arguments = parser.parse_intermixed_args()
    if arguments.action == "choose":
        chosen = [asdict(each) for each in choose(ROOT, arguments.seed, arguments.number)]
        arguments.file.write_text(json.dumps(chosen, indent=1) + "\n")
    elif arguments.action == "apply":
        _apply(_load(arguments.file))
    elif arguments.action == "remove":
        _remove()
    else:
        measurement = Measurement(arguments.file, _load(arguments.file))
        if arguments.action == "record":
            measurement.record(arguments.tests, arguments.processes)
        elif arguments.action == "run":
            measurement.run(arguments.only)
        else:
            measurement.run_together(arguments.only, arguments.tests, arguments.processes)
    return 0


if __name__ == "__main__":
    sys.exit(main())
