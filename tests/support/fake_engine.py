"""A deterministic engine behind the real client's interface, and a model folder to go with it.

Run as a program it is swiftchat with this engine: `fake_engine.py FOLDER SCRIPT [OPTION…]`, the
script being JSON: a list of answers, each a string or {"text" or "ids", "delay_s", "end_delay_s",
"error"}, the delays being before each token and before the answer's end;
{"load_s"} at its beginning is how long the engine takes to load.
"""

import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from swiftchat.engine.api.params import EngineConfig, SamplingParams
from swiftchat.engine.api.protocol import EngineInfo, Event, Finished, Logprob, Prefill, Tokens
from swiftchat.errors import DeviceError

TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
START_ID, END_ID = 256, 257


def byte_symbols() -> list[str]:
    """GPT-2's printable stand-ins for the 256 bytes, in byte order."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(b) if b in printable else chr(next(others)) for b in range(256)]


def make_folder(
    folder: Path, template: str | None = TEMPLATE, merges: tuple[str, ...] = (), **config: Any
) -> Path:
    """Write a model directory without weights; a token is a byte, or a pair of `merges`."""
    folder.mkdir(parents=True, exist_ok=True)
    vocab = {symbol: i for i, symbol in enumerate(byte_symbols())}
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
    """Yields an answer's bytes, or its ids, as tokens, one by one."""

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

    def __iter__(self) -> Iterator[Event]:
        yield Prefill(len(self.prompt), len(self.prompt))
        num_said, reason = 0, "stop"
        for token in self.answer.get("ids") or self.answer["text"].encode():
            if self.canceled:
                reason = "interrupt"
                break
            if num_said == self.params.max_tokens:
                reason = "length"
                break
            time.sleep(self.answer.get("delay_s", 0))
            num_said += 1
            yield Tokens([token], self._likelihoods(token))
        time.sleep(self.answer.get("end_delay_s", 0))
        if "error" in self.answer:
            raise DeviceError(self.answer["error"], "send it again")
        yield Finished(reason, len(self.prompt), self.cached_tokens, num_said, 0.5, 0.25, 7)

    def _likelihoods(self, token: int) -> list[Logprob]:
        """The token and those after it, each half as likely as the one before: 1/2, 1/4 …"""
        if self.params.logprobs is None:
            return []
        likeliest = [(token + i, (i + 1) * math.log(0.5)) for i in range(self.params.logprobs)]
        return [Logprob(math.log(0.5), likeliest)]

    def cancel(self) -> None:
        self.canceled = True


class FakeEngine:
    """Gives the scripted answers in turn and remembers what it was asked."""

    def __init__(self, answers: list[Any], ctx_size_tokens: int = 256) -> None:
        self.answers = [a if isinstance(a, dict) else {"text": a} for a in answers]
        self.ctx_size_tokens = ctx_size_tokens
        self.prompts: list[list[int]] = []
        self.params: list[SamplingParams] = []
        self.num_starts = self.num_closes = 0
        self.info: EngineInfo | None = None
        self.progress = None

    def start(self, config: EngineConfig, path: Path) -> "FakeEngine":
        self.config = config
        self.num_starts += 1
        return self

    def wait_ready(self, on_progress: Any = None) -> EngineInfo:
        if self.answers and "load_s" in self.answers[0]:
            time.sleep(self.answers[0]["load_s"])
            del self.answers[0]
        self.info = EngineInfo(
            "fake", "float32", 1000, 4000, 512, 8000, self.ctx_size_tokens, 1, 0.125
        )
        return self.info

    def generate(self, prompt: Sequence[int], params: SamplingParams) -> FakeGeneration:
        self.prompts.append(list(prompt))
        self.params.append(params)
        return FakeGeneration(prompt, self.answers.pop(0), params, cached_tokens=3)

    def stats(self) -> dict[str, int]:
        return {"free_blocks": 4}

    def close(self) -> None:
        self.num_closes += 1

    def asked(self, index: int = -1) -> str:
        """A prompt as text."""
        names = {START_ID: b"<|im_start|>", END_ID: b"<|im_end|>"}
        return b"".join(names.get(i) or bytes([i]) for i in self.prompts[index]).decode()


def main() -> None:
    from swiftchat.chat import cli
    from swiftchat.chat.model import chat_model

    folder, script, *options = sys.argv[1:]
    engine = FakeEngine(json.loads(script))
    chat_model.ChatModel.__init__.__defaults__ = (engine.start,)  # in place of the real `start`
    sys.argv = ["swiftchat", "-m", folder, *options]
    try:
        cli.main()
    finally:
        assert "torch" not in sys.modules, "the terminal's process imported torch"


if __name__ == "__main__":
    main()
