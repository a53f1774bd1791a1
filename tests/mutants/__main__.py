"""Run every deliberate fault against the tests that should notice it: `python -m tests.mutants`.

The faults are made in a copy of the tree. First all those tests run without a fault. A table shows
which faults were noticed; the exit code is 1 if one was not.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.mutants.mutants import MUTANTS, Mutant

ROOT = Path(__file__).parent.parent.parent
_LIMIT_S = 600  # a test that hangs has noticed the fault


class Tree:
    """A copy of the tree, from which tests import the program."""

    def __init__(self, folder: Path) -> None:
        self.root, self.output = folder / "tree", ""
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            check=True,
        )
        for name in filter(None, listed.stdout.decode().split("\0")):
            if (ROOT / name).exists():
                (self.root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, self.root / name, follow_symlinks=False)
        libraries = Path("engine/cpu/lib")  # compiled, and the same in all copies
        if (ROOT / libraries).is_dir():
            shutil.copytree(ROOT / libraries, self.root / libraries, dirs_exist_ok=True)

    def run(self, tests: tuple[str, ...]) -> int:
        """Run tests of the copy; return pytest's exit code, 1 for a hang."""
        paths = [str(self.root / ".types"), str(self.root)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        options = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:randomly", "-n", "0"]
        try:
            done = subprocess.run(
                [sys.executable, "-m", "pytest", *options, *tests],
                cwd=self.root,
                env=environment,
                capture_output=True,
                text=True,
                timeout=_LIMIT_S,
            )
        except subprocess.TimeoutExpired:
            return 1
        self.output = f"{done.stdout[-2000:]}{done.stderr[-2000:]}"
        return done.returncode

    def run_with(self, mutant: Mutant) -> str:
        """Return `noticed`, `NOT NOTICED`, or why the tests could not run."""
        file = self.root / mutant.file
        source = file.read_text()
        try:
            file.write_text(mutant.apply(source))
        except ValueError as error:
            return str(error)
        try:
            code = self.run(mutant.tests)
        finally:
            file.write_text(source)
        if code > 1:
            print(self.output, file=sys.stderr)
        return {0: "NOT NOTICED", 1: "noticed"}.get(code, f"the tests did not run ({code})")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("which", nargs="*", help="numbers of faults")
    parser.add_argument("--no-baseline", action="store_true", help="do not run without a fault")
    arguments = parser.parse_args()
    chosen = {
        number: mutant
        for number, mutant in enumerate(MUTANTS, 1)
        if not arguments.which or any(one == str(number) for one in arguments.which)
    }
    with tempfile.TemporaryDirectory(prefix="swiftchat-mutants-") as folder:
        tree = Tree(Path(folder))
        if not arguments.no_baseline:
            tests = {test: None for mutant in chosen.values() for test in mutant.tests}
            if code := tree.run(tuple(tests)):
                print(f"{tree.output}\nthe tests fail without a fault ({code})", file=sys.stderr)
                return 1
        print("| | fault | file | result |\n|---|---|---|---|")
        results = []
        for number, mutant in chosen.items():
            results.append(tree.run_with(mutant))
            print(f"| {number} | {mutant.fault} | {mutant.file} | {results[-1]} |", flush=True)
    print(f"{results.count('noticed')} of {len(results)} noticed")
    return int(set(results) != {"noticed"})


if __name__ == "__main__":
    sys.exit(main())
