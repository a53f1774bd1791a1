"""The listener of an engine: authentication, invalid messages, and terminals' answers."""

import contextlib
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from swiftchat.engine.api import protocol
from swiftchat.engine.api.address import Address
from swiftchat.engine.api.model_files import TextFile, files_from_wire
from swiftchat.engine.api.params import SamplingParams
from swiftchat.engine.api.protocol import Tokens
from swiftchat.engine.api.reasoning import ReasoningMarkers
from swiftchat.engine.api.remote import RemoteEngine, connect_engine, read_token
from swiftchat.engine.server import listener as listener_module
from swiftchat.engine.server.listener import Listener
from swiftchat.engine.server.validate import validate_command
from swiftchat.errors import BadModelFile, ContextOverflow, DeviceError, UsageError
from tests.support import tiny
from tests.support.remote_engine import ConnectedClient, serving
from tests.support.worker_processes import ENDLESS, GREEDY, collect, wait_until

PROMPT = [5, 6, 7]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama")
    tiny.make("llama", path)
    (path / "tokenizer.json").write_text("{}" + " " * 3_000_000)  # several pieces
    (path / "additional_chat_templates").mkdir()
    (path / "additional_chat_templates" / "tools.jinja").write_text("{{ tools }}")
    (path / "model.safetensors.index.json").write_text("{}")
    return path


@pytest.fixture(scope="module")
def tcp(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Listener]:
    token_file = tmp_path_factory.mktemp("state") / "new" / "token"
    with serving(folder, "127.0.0.1:0", token_file) as listener:
        yield listener


@pytest.fixture(scope="module")
def unix(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Listener]:
    with serving(folder, str(tmp_path_factory.mktemp("run") / "engine.sock")) as listener:
        yield listener


def connected_client(listener: Listener) -> ConnectedClient:
    return ConnectedClient(str(listener.address), listener.token_file)


def generate_greedily(listener: Listener) -> list[int]:
    with connected_client(listener) as client:
        return collect(client.generate(PROMPT, GREEDY))[0]


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_terminals_connect_disconnect_and_reconnect(
    kind: str, folder: Path, request: pytest.FixtureRequest
) -> None:
    listener: Listener = request.getfixturevalue(kind)
    expected = tiny.run(tiny.engine(folder), {1: PROMPT}, GREEDY)[0][1]
    assert generate_greedily(listener) == expected
    with connected_client(listener) as first:
        next(iter(first.generate([9], ENDLESS)))
    with connected_client(listener) as client:
        assert client.wait_ready().device.startswith("cpu, ")
        wait_until(lambda: client.stats()["running"] == 0)
        assert collect(client.generate(PROMPT, GREEDY))[0] == expected
        assert client.stats()["used_blocks"] == 0


def test_two_terminals_generate_concurrently(unix: Listener) -> None:
    """Both use generation id 1; disconnecting ends only the terminal's own generations."""
    expected = generate_greedily(unix)
    with connected_client(unix) as one:
        endless = iter(one.generate([9], ENDLESS))
        with connected_client(unix) as other:
            endless_too = other.generate([9], ENDLESS)
            while not isinstance(next(endless), Tokens):
                pass
            assert next(iter(endless_too))
            assert collect(other.generate(PROMPT, GREEDY))[0] == expected
        assert isinstance(next(endless), Tokens)
        wait_until(lambda: one.stats()["running"] == 1)


def test_errors_equal_those_of_a_local_engine(tcp: Listener) -> None:
    with connected_client(tcp) as client:
        with pytest.raises(ContextOverflow, match="256"):
            collect(client.generate([5] * 300, GREEDY))
        with pytest.raises(UsageError, match="vocabulary"):
            collect(client.generate([5, 96000], GREEDY))
        with pytest.raises(UsageError, match="invalid prompt"):
            collect(client.generate([5, -1], GREEDY))
        assert len(collect(client.generate(PROMPT, GREEDY))[0]) == 20


@pytest.mark.fault(28)
def test_token_file_and_socket_are_private(tcp: Listener, unix: Listener) -> None:
    assert tcp.token_file is not None and unix.address.path is not None
    for path in (tcp.token_file, unix.address.path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(tcp.token_file.parent.stat().st_mode) == 0o700
    assert len(tcp.token_file.read_text().strip()) >= 43  # 32 bytes
    assert unix.token_file is None


@pytest.mark.parametrize("token", ["", "guess", "é" * 20, None, 7, b"\xff"])
def test_wrong_token_closes_the_connection_without_answer(token: Any, tcp: Listener) -> None:
    hello = {"type": "hello", "version": protocol.VERSION, "token": token}
    assert response_to(tcp, framed(msgpack.packb(hello))) == b""
    with pytest.raises(DeviceError, match="closed the connection") as caught:
        connect_engine(str(tcp.address), token)
    assert "--token-file" in caught.value.hint
    assert len(generate_greedily(tcp)) == 20


def test_silent_connections_are_closed(tcp: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    """More silent connections than allowed handshakes: a terminal connects when they time out."""
    monkeypatch.setattr(listener_module, "_HANDSHAKE_S", 2)
    with contextlib.ExitStack() as silent:
        for _ in range(40):
            silent.enter_context(connected(tcp)).sendall(b"\0\0")
        assert len(generate_greedily(tcp)) == 20


def test_refusal_of_another_version_and_of_too_many_terminals(
    tcp: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener_module, "_MAX_TERMINALS", 1)
    with connected_client(tcp) as client:
        client.wait_ready()
        with pytest.raises(DeviceError, match="the engine already has 1 terminals"):
            connected_client(tcp)
    monkeypatch.setattr(listener_module, "VERSION", protocol.VERSION + 1)
    with pytest.raises(UsageError, match="another version"):
        connected_client(tcp)


def test_terminal_that_does_not_read_is_disconnected(
    unix: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener_module, "_SEND_TIMEOUT_S", 3)
    wait_until(lambda: unix._server.num_terminals == 0)
    params = GREEDY.to_wire() | {"max_tokens": 100, "logprobs": 50}
    generate = {"type": "generate", "id": 1, "prompt": PROMPT, "params": params}
    hello = {"type": "hello", "version": protocol.VERSION, "token": None}
    with connected(unix) as stuck:
        for message in (hello, {"type": "begin"}, *[generate] * 6):
            stuck.sendall(framed(msgpack.packb(message)))
        wait_until(lambda: unix._server.num_terminals == 1)
        wait_until(lambda: unix._server.num_terminals == 0)
        assert len(generate_greedily(unix)) == 20


def framed(content: bytes) -> bytes:
    return len(content).to_bytes(4, "big") + content


def connected(listener: Listener) -> socket.socket:
    return listener.address.connect(60)


def response_to(listener: Listener, content: bytes) -> bytes:
    """Send bytes, close for writing, and return all that the engine sends."""
    with connected(listener) as peer:
        peer.settimeout(60)
        response = b""
        with contextlib.suppress(OSError):  # the engine may close the connection meanwhile
            peer.sendall(content)
            peer.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionResetError):
            while data := peer.recv(65536):
                response += data
        return response


_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=4)
    | st.binary(max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)
_MARKERS = {"opens": [b"a"], "close": b"c", "is_open": True, "pieces": [[7, b"c"]], "ending": [7]}
_VALID_PARAMS = msgpack.unpackb(msgpack.packb(GREEDY.to_wire())) | {"max_tokens": 2}
_PARAMS = st.builds(
    lambda changes: _VALID_PARAMS | changes,
    st.dictionaries(st.sampled_from(sorted(_VALID_PARAMS)), _VALUES),
)
_COMMANDS = st.one_of(
    _VALUES,
    st.fixed_dictionaries(
        {"type": st.sampled_from(["hello", "load", "begin", "cancel", "stats", "file", "leave"])},
        optional=dict.fromkeys(("id", "measure", "name", "start", "token", "version"), _VALUES),
    ),
    st.fixed_dictionaries(
        {
            "type": st.just("generate"),
            "id": st.integers(0, 3) | _VALUES,
            "prompt": st.lists(st.integers(0, 100), max_size=3) | _VALUES,
            "params": _PARAMS | _VALUES,
        }
    ),
)
_BYTES = (
    st.binary(max_size=40)
    | _COMMANDS.map(msgpack.packb).map(framed)
    | st.sampled_from(
        [
            b"\xff\xff\xff\xff" + b"\x7f" * 8,
            b"\x7f\xff\xff\xff",
            b"\xff\xff\xff\x00",
            framed(b""),
            framed(b"\x81\xa4type\xd4\xff\x00"),
            framed(b"\xdd\xff\xff\xff\xff"),
            framed(b"\x91" * 2000),
        ]
    )
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(_BYTES, max_size=4))
def test_invalid_bytes_before_authentication_get_no_answer(
    tcp: Listener, messages: list[bytes]
) -> None:
    assert response_to(tcp, b"".join(messages)) == b""


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(_BYTES, max_size=6), st.booleans())
def test_invalid_bytes_of_a_terminal_close_only_its_connection(
    unix: Listener, messages: list[bytes], begins: bool
) -> None:
    hello = {"type": "hello", "version": protocol.VERSION, "token": None}
    first = [hello, {"type": "begin"}] if begins else [hello]
    response_to(unix, b"".join([*(framed(msgpack.packb(m)) for m in first), *messages]))
    with connected_client(unix) as client:
        assert len(collect(client.generate(PROMPT, GREEDY))[0]) == 20


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"type": "shutdown"}, "'shutdown'"),
        ({"id": True}, "generation id"),
        ({"prompt": [1.5]}, "prompt"),
        ({"params": {}}, "parameters"),
        ({"params": _VALID_PARAMS | {"top_k": 2**31}}, "top_k"),
        ({"params": _VALID_PARAMS | {"temperature": "0"}}, "temperature"),
        ({"params": _VALID_PARAMS | {"temperature": None}}, "temperature"),
        ({"params": _VALID_PARAMS | {"temperature": 2**64 - 1}}, "temperature"),
        ({"params": _VALID_PARAMS | {"top_k": 1.0}}, "top_k"),
        ({"params": _VALID_PARAMS | {"stop_ids": [-1]}}, "stop_ids"),
        ({"params": _VALID_PARAMS | {"seed": 2**64}}, "seed"),
        ({"params": _VALID_PARAMS | {"logit_bias": [[1, 2]]}}, "logit_bias"),
        ({"params": _VALID_PARAMS | {"logit_bias": [[-1, 2.0]]}}, "logit_bias"),
        ({"params": _VALID_PARAMS | {"logit_bias": [[1, 1e9]]}}, "logit_bias"),
        ({"params": _VALID_PARAMS | {"bad_words": [[]]}}, "bad_words"),
        ({"params": _VALID_PARAMS | {"bad_words": [["a"]]}}, "bad_words"),
        ({"params": _VALID_PARAMS | {"bad_words": [[1]] * (2**16 + 1)}}, "bad_words"),
        ({"params": _VALID_PARAMS | {"dry_breaker_ids": None}}, "dry_breaker_ids"),
        ({"params": _VALID_PARAMS | {"reasoning_budget": -1}}, "reasoning_budget"),
        ({"params": _VALID_PARAMS | {"reasoning": [1]}}, "parameter reasoning"),
        ({"params": _VALID_PARAMS | {"reasoning": _MARKERS | {"more": 1}}}, "parameter reasoning"),
        ({"params": _VALID_PARAMS | {"reasoning": _MARKERS | {"opens": ["a"]}}}, "reasoning"),
        ({"params": _VALID_PARAMS | {"reasoning": _MARKERS | {"opens": [b""]}}}, "is empty"),
        ({"params": _VALID_PARAMS | {"reasoning": _MARKERS | {"close": b""}}}, "is empty"),
        ({"params": _VALID_PARAMS | {"reasoning": _MARKERS | {"is_open": 1}}}, "reasoning"),
        (
            {"params": _VALID_PARAMS | {"reasoning": _MARKERS | {"pieces": [[-1, b""]]}}},
            "reasoning",
        ),
        ({"params": _VALID_PARAMS | {"reasoning": _MARKERS | {"pieces": [[1, "a"]]}}}, "reasoning"),
        ({"params": _VALID_PARAMS | {"reasoning": _MARKERS | {"ending": []}}}, "is empty"),
        ({"params": _VALID_PARAMS | {"reasoning": _MARKERS | {"ending": [2**31]}}}, "reasoning"),
    ],
)
def test_invalid_commands_raise(change: dict[str, Any], what: str) -> None:
    valid = {"type": "generate", "id": 1, "prompt": [1], "params": _VALID_PARAMS}
    assert validate_command(valid) == valid
    with pytest.raises(UsageError, match=what):
        validate_command(valid | change)


def test_valid_sampling_params_pass() -> None:
    controls = SamplingParams(logit_bias=((3, -1.5), (0, 2.0)), bad_words=((1, 2), (3,)))
    limits = SamplingParams(seed=2**64 - 1, logprobs=3, stop_ids=(1, 2))
    markers = ReasoningMarkers((b"a", b"b"), b"c", is_open=True, pieces=((7, b"c"),), ending=(7,))
    thinking = SamplingParams(reasoning_budget=9, reasoning=markers)
    for params in (SamplingParams(), limits, controls, thinking):
        wire = msgpack.unpackb(msgpack.packb(params.to_wire()))
        validate_command({"type": "generate", "id": 1, "prompt": [1], "params": wire})
        assert SamplingParams.from_wire(wire) == params


def test_terminal_fetches_only_the_models_text_files(
    tcp: Listener, folder: Path, tmp_path: Path
) -> None:
    engine = connected_client(tcp).engine
    engine.close()
    names = [file.name for file in engine.files]
    expected = [
        "additional_chat_templates/tools.jinja",
        "config.json",
        "generation_config.json",
        "tokenizer.json",
    ]
    assert names == expected
    engine = connect_engine(str(tcp.address), read_token(tcp.token_file, str(tcp.address)))
    fetched = engine.fetch_model_files(tmp_path)
    assert fetched.name == "tiny"
    for name in names:
        assert (fetched / name).read_bytes() == (folder / name).read_bytes()
    assert engine.fetch_model_files(tmp_path) == fetched
    for name in ("model.safetensors", "../secret", "/etc/passwd"):
        assert engine._request({"type": "file", "name": name, "start": 0})["type"] == "error"
    engine.files = [TextFile("config.json", 5, "0" * 64)]
    with pytest.raises(BadModelFile, match=r"config\.json received from the engine does not match"):
        engine.fetch_model_files(tmp_path)
    engine.close()


def test_files_that_links_point_to_are_sent_only_inside_the_folder(tmp_path: Path) -> None:
    model, secret = tmp_path / "models--a--b" / "snapshots" / "0" / "model", tmp_path / "secret"
    tiny.make("llama", model)
    secret.write_text("a secret")
    blob = tmp_path / "models--a--b" / "blobs" / "0"
    blob.parent.mkdir()
    blob.write_text("{}")
    (model / "special_tokens_map.json").symlink_to(blob)  # as in huggingface_hub's cache
    (model / "added_tokens.json").symlink_to("config.json")
    (model / "notes.txt").symlink_to(secret)
    (model / "loop.txt").symlink_to("loop.txt")
    (model / "additional_chat_templates").symlink_to(tmp_path)
    (tmp_path / "secret.jinja").write_text("a secret")
    os.mkfifo(model / "fifo.txt")
    with serving(model, str(tmp_path / "s")) as listener:
        engine = connected_client(listener).engine
        names = [file.name for file in engine.files]
        # A file that was listed is replaced by a link while the engine runs.
        (model / "added_tokens.json").unlink()
        (model / "added_tokens.json").symlink_to(secret)
        engine.close()
        engine = connect_engine(str(listener.address), None)
        request = {"type": "file", "name": "added_tokens.json", "start": 0}
        assert engine._request(request)["type"] == "error"
        engine.close()
    assert names == [
        "added_tokens.json",
        "config.json",
        "generation_config.json",
        "special_tokens_map.json",
    ]


@pytest.mark.parametrize(
    "wire",
    [
        ["../x.json", 1, "0" * 64],
        ["/x.json", 1, "0" * 64],
        ["x.sh", 1, "0" * 64],
        "x.json",
        [".json", 1, "0" * 64],
        ["x.json", 2**40, "0" * 64],
        ["a/b.json", 1, "0" * 64],
        ["x.json", 1, "short"],
        ["x.json\n.json", 1, "0" * 64],
    ],
)
def test_unsafe_model_files_raise(wire: Any) -> None:
    with pytest.raises(BadModelFile, match="invalid model file"):
        TextFile.from_wire(wire)


def test_too_many_or_too_large_model_files_raise() -> None:
    files = [[f"{number}.json", 1 << 28, "0" * 64] for number in range(2)]
    assert len(files_from_wire(files)) == 2
    with pytest.raises(BadModelFile, match="bytes, more than"):
        files_from_wire([*files, ["x.json", 1, "0" * 64]])
    with pytest.raises(BadModelFile, match="offers 201 model files"):
        files_from_wire([["x.json", 0, "0" * 64]] * 201)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:4000", Address("127.0.0.1", 4000)),
        ("[::1]:1", Address("::1", 1)),
        ("./e.sock", Address(path=Path("e.sock"))),
        ("/run/e", Address(path=Path("/run/e"))),
    ],
)
def test_parse_address(text: str, expected: Address) -> None:
    assert Address.parse(text) == expected
    assert str(expected) == text


@pytest.mark.parametrize("text", ["", "4000", "host", "host:", "::1:4000", "a:b"])
def test_invalid_address_raises(text: str) -> None:
    with pytest.raises(UsageError, match="neither HOST:PORT nor a path"):
        Address.parse(text)
    with pytest.raises(UsageError, match="the port of 'host:70000' is above 65535"):
        Address.parse("host:70000")


@pytest.mark.fault(7)
def test_listening_only_on_loopback_and_free_addresses(tmp_path: Path, unix: Listener) -> None:
    with pytest.raises(UsageError, match="other machines"):
        Address("0.0.0.0", 0).listen()
    with pytest.raises(DeviceError, match="cannot listen at"):
        Address(path=unix.address.path).listen()
    left = tmp_path / "left.sock"
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(left))
    Address(path=left).listen().close()
    (tmp_path / "file").write_text("mine")
    with pytest.raises(DeviceError, match="cannot listen at"):
        Address(path=tmp_path / "file").listen()
    assert (tmp_path / "file").read_text() == "mine"


def test_close_removes_socket_and_token(folder: Path, tmp_path: Path) -> None:
    with serving(folder, str(tmp_path / "e.sock")), serving(folder, "127.0.0.1:0", tmp_path / "t"):
        assert len(list(tmp_path.iterdir())) == 2
    assert not list(tmp_path.iterdir())
    with pytest.raises(DeviceError, match="no engine answers"):
        connect_engine(str(tmp_path / "e.sock"), None)
    with pytest.raises(DeviceError, match="no engine answers"):
        connect_engine("x" * 300 + ":1", None)
    with pytest.raises(DeviceError, match="cannot listen"):
        Address(path=tmp_path / ("x" * 200)).listen()
    with pytest.raises(UsageError, match="cannot read the engine's token"):
        read_token(tmp_path / "t", "127.0.0.1:1")


def test_engine_without_heartbeat_is_given_up(
    unix: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An idle engine sends heartbeats."""
    with connected_client(unix) as client:
        client.wait_ready()
        client._received = False
        wait_until(lambda: client._received)
    engine = client.engine
    assert isinstance(engine, RemoteEngine)
    assert engine.check(is_ready=True, received=True) is None
    checks = [engine.check(is_ready=True, received=False) for _ in range(5)]
    assert checks[:4] == [None] * 4
    assert checks[4] is not None and "has sent nothing for 5 s" in checks[4].message
