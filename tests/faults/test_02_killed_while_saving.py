"""Fault 2: the program is killed while it saves a conversation.

Required: the store has the old or the new conversation, whole, and no message whose save has
returned is lost.

Provoked by: SIGKILL before every statement of a save, and at random points of saves.
"""

import subprocess
import sys
from pathlib import Path

# Each kill is in a fork of one process, so that it does not import the program anew.
_EVERY_STATEMENT = """
import os, signal, sys
from pathlib import Path
from swiftchat.chat.history.conversation import Conversation
from swiftchat.chat.history.store import SessionStore

folder = Path(sys.argv[1])
NAMES = ["one", "two", "three"]

def add_turns(conversation, *texts):
    for text in texts:
        conversation.add("user", text)
        conversation.add("assistant", f"answer to {text}")

def save_and_die(path, id_, point):
    "Add three turns to a saved conversation, die before the statement POINT; exit with 0 if saved."
    store = SessionStore(path, print)
    conversation = store.load(id_)
    calls = iter(range(1000))
    def count(statement):
        if next(calls) == point:
            os.kill(os.getpid(), signal.SIGKILL)
    store._db.set_trace_callback(count)
    add_turns(conversation, *NAMES[1:])
    conversation.name = "new"
    store.save(conversation)
    os._exit(0)

killed = 0
for point in range(1000):
    path = folder / str(point) / "sessions.db"
    old = Conversation()
    old.name = "old"
    add_turns(old, NAMES[0])
    with SessionStore(path, print) as store:
        store.save(old)
    child = os.fork()
    if not child:
        save_and_die(path, old.id, point)
    _, status = os.waitpid(child, 0)
    with SessionStore(path, print) as store:
        (row,) = store.recent()
        found = store.load(row["id"])
        assert store._db.execute("PRAGMA integrity_check").fetchall()[0][0] == "ok"
    texts = [message.content for message in found.messages if message.role == "user"]
    assert (found.name, texts) in (("old", NAMES[:1]), ("new", NAMES)), (point, found.name, texts)
    assert len(found.messages) == 2 * len(texts)
    if status == 0:
        assert found.name == "new"
        break
    assert os.WTERMSIG(status) == signal.SIGKILL
    killed += 1
    was_old = found.name == "old"
print(killed)
"""


def test_a_kill_before_any_statement_keeps_the_old_or_the_new(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _EVERY_STATEMENT, str(tmp_path)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    # BEGIN, SELECT, the conversation, four messages with their index, COMMIT.
    assert int(done.stdout) >= 8


# Starts writers and kills each at a random moment. A writer reports each save through a pipe
# (in atomic writes); after the kill everything it reported must be in the store.
_RANDOM_POINTS = """
import os, random, signal, sqlite3, sys, time
from pathlib import Path
from swiftchat.chat.history.conversation import Conversation
from swiftchat.chat.history.store import SessionStore
from swiftchat.chat.history.tool_call import ToolCall

path, times = Path(sys.argv[1]), int(sys.argv[2])
SessionStore(path, print).close()
random.seed(1)


def write(end):
    with SessionStore(path, print) as store:
        conversation = Conversation()
        while True:
            conversation.add("user", "q" * random.randrange(2000))
            store.save(conversation)
            answer = conversation.add("assistant", "", None)
            for length in range(100, 1000, 100):
                answer.content = "a" * length
                conversation.unsaved[answer] = None
                store.save(conversation)
                os.write(end, f"{conversation.id} {answer.id} {length}\\n".encode())


for number in range(times):
    ours, theirs = os.pipe()
    child = os.fork()
    if not child:
        write(theirs)
    os.close(theirs)
    first = os.read(ours, 1)  # its first save is done
    time.sleep(random.random() * 0.012)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    reported = (first + os.read(ours, 1 << 20)).decode().splitlines()
    os.close(ours)
    with SessionStore(path, print) as store:
        for line in reported[-3:]:
            session, message, length = line.split()
            tree = {one.id: one for one in store.load(session).tree}
            assert len(tree[message].content) >= int(length), line
            assert all(one.parent is None or one.parent in tree.values() for one in tree.values())
db = sqlite3.connect(path)
assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
db.execute("INSERT INTO search (search, rank) VALUES ('integrity-check', 1)")
"""


def test_kills_at_random_points_lose_no_message(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _RANDOM_POINTS, str(tmp_path / "sessions.db"), "60"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "was renamed" not in done.stdout
