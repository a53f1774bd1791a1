"""Programs that are forked from a process which has imported them, instead of started.

A start of Python that imports torch takes a second of processor time, a fork some milliseconds.
`install` makes `subprocess` and `pexpect` fork what can be forked; `real_starts` turns that off.
Linux only: elsewhere, and where the kernel lacks what is needed, every program is started.

- `image`: what the forked processes have imported;
- `start`: what a new process gets, and which commands can be forked;
- `process`: becoming such a process;
- `server`: the process with the image, whose forks become children of the tests' process;
- `install`: the replaced functions of `subprocess` and `pexpect`.
"""
