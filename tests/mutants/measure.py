"""Which tests reach a mutant, and which notice it."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from tests.mutants.schemata import Sampled
from tests.support.smollm2 import FOLDER as MODELS

ROOT = Path(__file__).parents[2]
FOLDER = Path(sys.prefix) / "mutants"  # where the switch looks
_CAP_S = 150.0  # of processor time that a mutant's tests took without it
_LIMIT_S = 1800  # tests that hang have noticed a mutant


@dataclass
class Outcome:
    """What a test took, its processor time, and whether it failed, passed or was skipped."""

    seconds: float
    result: str


def run_tests(tests: list[str], processes: str, *options: str) -> tuple[int, dict[str, Outcome]]:
    """Run tests of this tree; return pytest's exit code and the outcomes of those that ended."""
    with tempfile.TemporaryDirectory() as folder:
        names, report = Path(folder) / "tests", Path(folder) / "report.xml"
        names.write_text("\n".join(tests))
        command = [sys.executable, "-m", "pytest", "-q", "-n", processes, *options]
        command += ["-p", "tests.support.processor_times", f"--junitxml={report}"]
        command += ["-o", "junit_family=xunit1", "-p", "no:cacheprovider"]
        environment = {**os.environ, "HYPOTHESIS_STORAGE_DIRECTORY": f"{folder}/hypothesis"}
        with (FOLDER / "output").open("w") as output:
            process = subprocess.Popen(
                [*command, f"@{names}"],
                cwd=ROOT,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                code = process.wait(_LIMIT_S if tests else None)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                code = process.wait()
        return code, _outcomes(report) if report.exists() else {}


def run_with(
    numbers: set[int], tests: list[str], processes: str, *options: str
) -> tuple[int, dict[str, Outcome]]:
    """Run tests with mutants on, as `run_tests`; keep no model that they have converted."""
    _forget_models()
    (FOLDER / "active").write_text(" ".join(map(str, numbers)))
    try:
        return run_tests(tests, processes, *options)
    finally:
        (FOLDER / "active").unlink()
        _forget_models()


def _forget_models() -> None:
    for file in MODELS.glob("*/config.json"):
        shutil.rmtree(file.parent)


def _failed(outcomes: dict[str, Outcome]) -> list[str]:
    return [name for name, each in outcomes.items() if each.result in ("failure", "error")]


def _outcomes(report: Path) -> dict[str, Outcome]:
    found = {}
    for case in ElementTree.parse(report).iter("testcase"):
        file, module = case.get("file", ""), case.get("classname", "")
        classes = module.removeprefix(file.removesuffix(".py").replace("/", ".")).strip(".")
        name = "::".join(filter(None, (file, classes.replace(".", "::"), case.get("name"))))
        seconds = next(
            (float(each.get("value", 0)) for each in case.iter("property")),
            float(case.get("time", 0)),
        )
        kinds = {each.tag for each in case}
        result = next((k for k in ("failure", "error", "skipped") if k in kinds), "passed")
        found[name] = Outcome(seconds, result)
    return found


class Measurement:
    """The mutants of `file`, which are in this tree; notes and results are in files beside it."""

    def __init__(self, file: Path, mutants: list[Sampled]) -> None:
        self.mutants = mutants
        self._record, self._results = file.with_suffix(".record"), file.with_suffix(".results")
        self.reached: dict[int, set[str]] = defaultdict(set)
        self.outcomes: dict[str, Outcome] = {}

    def record(self, tests: list[str], processes: str) -> None:
        """Run tests without a mutant and note what they reach, beside what is noted already.

        `tests` are arguments of pytest, none for the whole suite.
        """
        if self._record.exists():
            self._read()
        (FOLDER / "reached").write_text("")
        (FOLDER / "active").unlink(missing_ok=True)
        self.outcomes |= run_tests(tests, processes)[1]
        for line in set((FOLDER / "reached").read_text("utf-8", "replace").splitlines()):
            number, _, test = line.partition("\t")
            self.reached[int(number)].add(test.rpartition(" (")[0] or test)
        (FOLDER / "reached").unlink()
        reached = {number: sorted(found) for number, found in sorted(self.reached.items())}
        outcomes = {test: [each.seconds, each.result] for test, each in self.outcomes.items()}
        self._record.write_text(json.dumps({"reached": reached, "tests": outcomes}, indent=0))

    def _read(self) -> None:
        notes = json.loads(self._record.read_text())
        self.reached |= {int(number): {*tests} for number, tests in notes["reached"].items()}
        self.outcomes = {name: Outcome(*each) for name, each in notes["tests"].items()}

    def run(self, only: list[int] | None) -> None:
        """Switch mutants on, one by one; print a table and keep the results."""
        self._read()
        results = json.loads(self._results.read_text()) if self._results.exists() else {}
        for mutant in self.mutants:
            if mutant.number in only if only else str(mutant.number) not in results:
                results[str(mutant.number)] = self._run_one(mutant)
                print(mutant.number, results[str(mutant.number)], flush=True)
                self._results.write_text(json.dumps(results, indent=1))
        print("| | mutant | change | result |\n|---|---|---|---|")
        for each in self.mutants:
            change = f"`{each.text}` → `{each.replacement}`".replace("|", "\\|").replace("\n", " ")
            result = results.get(str(each.number), "").replace("|", "\\|")
            print(f"| {each.number} | {each.file}:{each.line} | {change} | {result} |")

    def run_together(self, numbers: list[int], tests: list[str], processes: str) -> None:
        """Run tests once with several mutants on; run those that fail with each of them alone.

        So expensive tests run once for all mutants that the others have not noticed.
        """
        failed = _failed(run_with({*numbers}, tests, processes, "--timeout=120")[1])
        print(f"{len(failed)} tests fail with all of them:", *failed, sep="\n", flush=True)
        for number in numbers:
            print(number, self._noticed(number, failed) or "NOT noticed", flush=True)

    def _run_one(self, mutant: Sampled) -> str:
        """Run the tests that reach a mutant, and those that may use what it has computed before.

        A module and a fixture compute some things when they are first used, for all later tests;
        the related tests come first where a module does that when it is imported.
        """
        reached = self.reached[mutant.number]
        groups = [reached & {*self.outcomes}, self._related(mutant)]
        num_run, spent, left = 0, 0.0, dict(self.outcomes)
        for tests in groups if "" not in reached else reversed(groups):
            chosen = _cheapest({test: left[test] for test in tests if test in left}, spent)
            spent += sum(left.pop(test).seconds for test in chosen)
            if noticed := self._noticed(mutant.number, chosen):
                return noticed
            num_run += len(chosen)
        num_left = len(reached & {*left})
        return f"NOT noticed by {num_run} tests; {num_left} that reach it did not run"

    def _related(self, mutant: Sampled) -> set[str]:
        """Return the tests of the mirrored folder and of files that name the module."""
        module = mutant.file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        folder = Path("tests", mutant.file).parent
        while not any((ROOT / folder).glob("test_*.py")):
            folder = folder.parent
        files = {
            file
            for file in {test.partition("::")[0] for test in self.outcomes}
            if Path(file).parent == folder or f"swiftchat.{module} " in (ROOT / file).read_text()
        }
        return {test for test in self.outcomes if test.partition("::")[0] in files}

    def _noticed(self, number: int, tests: list[str]) -> str:
        """Return which test notices a mutant, one that passes without it; or nothing."""
        while tests:
            code, outcomes = run_with({number}, tests, "0", "-x", "--timeout=120")
            failed = _failed(outcomes)
            if not failed:
                return f"the tests ended with code {code}" if code else ""
            if run_tests(failed[:1], "0")[0] == 0 or failed[0] not in tests:
                return failed[0]
            tests = [test for test in tests if test not in failed]
        return ""


def _cheapest(tests: dict[str, Outcome], spent: float) -> list[str]:
    """Return the cheapest tests that pass, until all have taken the most that is allowed."""
    chosen = []
    for name, outcome in sorted(tests.items(), key=lambda each: (each[1].seconds, each[0])):
        spent += outcome.seconds
        if outcome.result == "passed" and spent <= _CAP_S:
            chosen.append(name)
    return chosen
