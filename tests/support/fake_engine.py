"""A scripted engine with the interface of `EngineClient`, and a model folder for it.

`fake_engine.py FOLDER SCRIPT [OPTION…]` runs swiftchat with this engine; FOLDER `-` leaves the
choice of the model to the options. SCRIPT is a JSON list of
answers, each a string or an object with "text" or "ids", and optionally "delay_s" (before each
token), "end_delay_s" (before the end), "limit" (of tokens, as of a full context), "dropped"
(tokens that a sliding context drops before the end),
"prefill_s", "beams" (instead of "text", a list of texts and scores), "records" (a file for the ids
of the prompt, as JSON) and "error". A first object
{"load_s"} sets the load time; its "stats_s" is the time that /stats takes, its "ctx_size_tokens"
the context.
"""

import json
import math
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from swiftchat.engine.api.params import EngineConfig, SamplingParams
from swiftchat.engine.api.protocol import (
    Beam,
    Dropped,
    EngineInfo,
    Event,
    Finished,
    Logprob,
    Prefill,
    PromptLogprobs,
    Tokens,
)
from swiftchat.engine.api.tuning import Tuning
from swiftchat.engine.api.vocabulary import ConstraintSpec
from swiftchat.errors import DeviceError

TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# A template that takes tools, as those of Hermes and Qwen.
TOOL_TEMPLATE = """{%- if tools %}
{{- '<|im_start|>system\n<tools>' }}
{%- for tool in tools %}{{ '\n' }}{{ tool | tojson }}{%- endfor %}
{{- '\n</tools><|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'tool' %}
{{- '<|im_start|>user\n<tool_response>\n' + message.content + '\n</tool_response><|im_end|>\n' }}
{%- else %}
{{- '<|im_start|>' + message.role + '\n' + message.content }}
{%- for call in message.tool_calls or [] %}
{{- '\n<tool_call>\n' }}{{ call.function | tojson }}{{ '\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""
START_ID, END_ID = 256, 257


def byte_symbols() -> list[str]:
    """Return GPT-2's printable symbols for the 256 bytes, in byte order."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(b) if b in printable else chr(next(others)) for b in range(256)]


def tool_call(name: str, **arguments: object) -> str:
    """Return an answer that calls a tool, for `TOOL_TEMPLATE`."""
    value = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{value}\n</tool_call>"


def text_of(ids: Sequence[int]) -> str:
    """Return the text of ids of the fake model's tokenizer, without merges."""
    names = {START_ID: b"<|im_start|>", END_ID: b"<|im_end|>"}
    return b"".join(names.get(i) or bytes([i]) for i in ids).decode()


def make_folder(
    folder: Path, template: str | None = TEMPLATE, merges: tuple[str, ...] = (), **config: Any
) -> Path:
    """Write a model directory without weights; a token is a byte or one of `merges`."""
    folder.mkdir(parents=True, exist_ok=True)
    vocab = {symbol: i for i, symbol in enumerate(byte_symbols())}
    if merges:  # their ids are above those of the control tokens
        vocab |= {"<|im_start|>": START_ID, "<|im_end|>": END_ID}
    vocab |= {pair.replace(" ", ""): END_ID + 1 + i for i, pair in enumerate(merges)}
    special = {
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "normalizer": None,
        "added_tokens": [
            {"id": START_ID, "content": "<|im_start|>", **special},
            {"id": END_ID, "content": "<|im_end|>", **special},
        ],
        "pre_tokenizer": {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": True,
            "use_regex": True,
        },
        "post_processor": None,
        "decoder": {
            "type": "ByteLevel",
            "add_prefix_space": True,
            "trim_offsets": True,
            "use_regex": True,
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocab,
            "merges": list(merges),
        },
    }
    model_config = {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 258,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "bos_token_id": None,
        "eos_token_id": END_ID,
        "dtype": "float32",
        **config,
    }
    names = {"eos_token": "<|im_end|>", "chat_template": template}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "config.json").write_text(json.dumps(model_config))
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    return folder


class FakeGeneration:
    """Yields an answer's bytes, or its ids, one token at a time."""

    def __init__(
        self,
        prompt: Sequence[int],
        answer: dict[str, Any],
        params: SamplingParams,
        cached_tokens: int,
    ) -> None:
        self.prompt = prompt
        self.answer = answer
        self.params = params
        self.cached_tokens = cached_tokens
        self.canceled = False

    @property
    def arrived(self) -> float:
        return time.perf_counter()

    def __iter__(self) -> Iterator[Event]:
        if "prefill_s" in self.answer:
            for tenth in range(10):
                yield Prefill(len(self.prompt) * tenth // 10, len(self.prompt))
                time.sleep(self.answer["prefill_s"] / 10)
        yield Prefill(len(self.prompt), len(self.prompt))
        if self.params.prompt_logprobs is not None:
            num_top = self.params.prompt_logprobs
            found = [_logprob(token, num_top) for token in self.prompt[1:]]
            yield PromptLogprobs(found)
        num_tokens, reason = 0, "stop"
        for text, score in self.answer.get("beams", ()):
            yield Beam(list(text.encode()), score, "stop")
        for token in self.answer.get("ids") or self.answer.get("text", "").encode():
            if self.canceled:
                reason = "interrupt"
                break
            if num_tokens in (self.params.max_tokens, self.answer.get("limit")):
                reason = "length"
                break
            time.sleep(self.answer.get("delay_s", 0))
            num_tokens += 1
            yield Tokens([token], self._logprobs(token))
        time.sleep(self.answer.get("end_delay_s", 0))
        if "dropped" in self.answer:
            yield Dropped(self.answer["dropped"])
        if "error" in self.answer:
            error = self.answer["error"]  # in Python also an exception
            raise error if isinstance(error, Exception) else DeviceError(error, "send it again")
        yield Finished(reason, len(self.prompt), self.cached_tokens, num_tokens, 0.5, 0.25, 7)

    def _logprobs(self, token: int) -> list[Logprob]:
        if self.params.logprobs is None:
            return []
        return [_logprob(token, self.params.logprobs)]

    def cancel(self) -> None:
        self.canceled = True


def _logprob(token: int, num_top: int) -> Logprob:
    """Return the token's probability 1/2, and 1/2, 1/4 … for the ids from the token on."""
    top = [(token + i, (i + 1) * math.log(0.5)) for i in range(num_top)]
    return Logprob(math.log(0.5), top)


class FakeEngine:
    """Returns the scripted answers in order and records prompts, parameters and constraints."""

    is_attached = False

    def __init__(self, answers: list[Any], ctx_size_tokens: int = 256) -> None:
        self.answers = [a if isinstance(a, dict) else {"text": a} for a in answers]
        self.ctx_size_tokens = ctx_size_tokens
        self.prompts: list[list[int]] = []
        self.params: list[SamplingParams] = []
        self.constraints: list[ConstraintSpec | None] = []
        self.tunings: list[Tuning | None] = []
        self.num_starts = self.num_closes = 0
        self.ended = threading.Event()
        self.info: EngineInfo | None = None
        self.progress = None
        self.stats_s = 0.0
        self.phases: list[tuple[str, float]] = []

    def start(self, config: EngineConfig, path: Path) -> "FakeEngine":
        self.config = config
        self.num_starts += 1
        self.phases = [("starting a process", time.perf_counter())]
        return self

    def wait_ready(self, on_progress: Any = None) -> EngineInfo:
        if self.answers and "load_s" in self.answers[0]:
            first = self.answers.pop(0)
            time.sleep(first["load_s"])
            self.stats_s = first.get("stats_s", 0)
            self.ctx_size_tokens = first.get("ctx_size_tokens", self.ctx_size_tokens)
        self.info = EngineInfo(
            "fake", "float32", 1000, 4000, 512, 8000, self.ctx_size_tokens, 1, 0.125
        )
        return self.info

    def generate(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        constraint: ConstraintSpec | None = None,
        tuning: Tuning | None = None,
    ) -> FakeGeneration:
        self.prompts.append(list(prompt))
        self.params.append(params)
        self.constraints.append(constraint)
        self.tunings.append(tuning)
        answer = self.answers.pop(0)
        if "records" in answer:
            Path(answer["records"]).write_text(json.dumps(list(prompt)))
        return FakeGeneration(prompt, answer, params, cached_tokens=3)

    def wait_ended(self) -> None:
        self.ended.wait()

    def stats(self) -> dict[str, int]:
        time.sleep(self.stats_s)
        return {
            "num_blocks": 8,
            "block_size": 64,
            "free_blocks": 4,
            "used_blocks": 1,
            "cached_blocks": 3,
            "disk_blocks": 2,
        }

    def close(self) -> None:
        self.num_closes += 1

    def prompt_text(self, index: int = -1) -> str:
        """Return a recorded prompt as text."""
        return text_of(self.prompts[index])


def main() -> None:
    from swiftchat.chat import cli
    from swiftchat.chat.model import chat_model

    folder, script, *options = sys.argv[1:]
    engine = FakeEngine(json.loads(script))
    chat_model.ChatModel.__init__.__defaults__ = (engine.start, None)  # replaces the real `start`
    sys.argv = ["swiftchat", *(["-m", folder] if folder != "-" else []), *options]
    try:
        cli.main()
    finally:
        assert "torch" not in sys.modules, "the terminal's process imported torch"


if __name__ == "__main__":
    main()
