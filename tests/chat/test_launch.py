"""Ctrl-C at any moment of the start ends the program with 130 and prints no traceback.

A new interpreter forks a process for each moment: a hook of the interpreter interrupts the process
at its n-th import. The interpreter has not imported anything of the program but the launcher.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

DRIVER = """
import json, os, signal, sys
from swiftchat.chat.launch import main

def run(moment):
    "Return the exit code, the output, and whether the process was interrupted."
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.dup2(writing, 1)
        os.dup2(writing, 2)
        num_imports = 0
        def interrupt(event, arguments):
            nonlocal num_imports
            if event == "import":
                num_imports += 1
                if num_imports == moment:
                    os.write(1, b"^C")
                    signal.raise_signal(signal.SIGINT)
        sys.addaudithook(interrupt)
        sys.argv = ["swiftchat", "--version"]
        main()
        os._exit(1)
    os.close(writing)
    output = b""
    while piece := os.read(reading, 65536):
        output += piece
    os.close(reading)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), output.decode()

found, moment = [], 1
while True:
    code, output = run(moment)
    found.append((code, output))
    if "^C" not in output:
        break
    moment += 1 + moment // 6
print(json.dumps(found))
"""


def test_ctrl_c_at_every_moment_of_the_start() -> None:
    done = subprocess.run([sys.executable, "-c", DRIVER], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    *interrupted, (last_code, last_output) = json.loads(done.stdout)
    assert last_code == 0 and last_output.startswith("swiftchat ")
    assert len(interrupted) > 15
    for code, output in interrupted:
        # The program's own handler delays Ctrl-C during an import; `--version` ends before that.
        assert code == 130 or (code == 0 and output.endswith(last_output)), output
        assert "Traceback" not in output and "KeyboardInterrupt" not in output
    assert interrupted[0] == [130, "^C"]


def test_an_empty_cache_folder_means_the_usual_one() -> None:
    """huggingface_hub would store models in the current folder."""
    code = (
        "import sys, swiftchat.chat.launch\n"
        "sys.argv = ['swiftchat', '--version']\n"
        "try:\n    swiftchat.chat.launch.main()\nexcept SystemExit:\n    pass\n"
        "from huggingface_hub import constants\nprint(constants.HF_HUB_CACHE)"
    )
    env = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    env["XDG_CACHE_HOME"] = ""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert Path(done.stdout.splitlines()[-1]).is_absolute(), done.stderr
