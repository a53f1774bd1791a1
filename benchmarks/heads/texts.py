"""Conversations that a model writes itself: the requests, and the answers to them."""

import argparse
import itertools
import math
import random
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from swiftchat.engine.api.params import SamplingParams
from swiftchat.engine.api.protocol import Tokens
from swiftchat.engine.generation.engine import Engine
from swiftchat.engine.gpu.steps.async_decode import AsyncDecode
from swiftchat.engine.schedule.sequence import TokenSequence
from swiftchat.tokenizer import Tokenizer

_REQUESTS = (
    "Explain {} to a child.",
    "What are the most important facts about {}?",
    "Write a short story about {}.",
    "Give me five tips about {}.",
    "Write an email to a friend about {}.",
    "What are the advantages and disadvantages of {}?",
    "Write a Python function that has to do with {}, and explain it.",
    "Summarize the history of {}.",
    "Write a poem about {}.",
    "Make a table of three examples of {}.",
)
_TOPICS = (
    *("rivers", "bread", "chess", "volcanoes", "the moon", "gardens", "trains", "money", "sleep"),
    *("music", "bees", "maps", "winter", "friendship", "football", "prime numbers", "coffee"),
    *("the sea", "photography", "dinosaurs", "bridges", "languages", "exercise", "computers"),
    *("elections", "painting", "cats", "electricity", "the weather", "markets", "tea", "novels"),
)
# Requests about an earlier answer, as the tasks of speculation_tasks.txt are.
_FOLLOW_UPS = (
    "Summarize this text and quote two of its sentences:\n\n{}",
    "Correct the mistakes in this text and repeat all of it:\n\n{}",
    "Rewrite the following in simpler words:\n\n{}",
    "Add a comment to every function and print the whole code again:\n\n{}",
    "Change the names in this text and write it again:\n\n{}",
    "Which sentence of this text is the most important one?\n\n{}",
)
# Beginnings of questions that the model completes.
_STARTS = ("How", "What", "Why", "Write", "Can you", "Explain", "I", "Please", "Is", "Give me")
_TOPIC_SHARE, _QUESTION_SHARE = 0.35, 0.35  # of the answers; the others are about earlier ones
_MAX_QUESTION_TOKENS, _MAX_QUOTED_WORDS = 40, 120
_LEAST_TOKENS = 4  # of an answer
_STEPS_AHEAD = 4  # launched before the host reads one

Request = tuple[list[int], SamplingParams]


@dataclass(frozen=True)
class Text:
    """The tokens of a conversation; those from `answer` on were written by the model."""

    tokens: list[int]
    answer: int

    @property
    def num_written(self) -> int:
        return len(self.tokens) - self.answer


class Writer:
    """Lets a model write texts, `args.rows` at a time."""

    def __init__(self, engine: Engine, tokenizer: Tokenizer, args: argparse.Namespace) -> None:
        self._engine, self._tokenizer, self._args = engine, tokenizer, args
        self._chance, self._num_requests = random.Random(args.seed), 0
        self._asked = set[str]()
        self._deadline = math.inf  # by the monotonic clock, in seconds

    def texts(self) -> list[Text]:
        """Return answers of `args.tokens` tokens together, or some more."""
        args, started = self._args, time.monotonic()
        first = _TOPIC_SHARE + _QUESTION_SHARE
        self._deadline = started + 60 * first * args.write_minutes
        questions = self._questions(int(_QUESTION_SHARE * args.tokens / args.max_tokens) + 1)
        found = self._answers(self._first_prompts(questions), first * args.tokens)
        earlier = [self._tokenizer.decode(text.tokens[text.answer :]) for text in found]
        self._deadline = started + 60 * args.write_minutes
        found += self._answers(self._follow_ups(earlier), (1 - first) * args.tokens)
        num_tokens, seconds = sum(t.num_written for t in found), time.monotonic() - started
        print(
            f"generated {num_tokens} tokens of {len(found)} answers in {seconds:.1f} s "
            f"({num_tokens / seconds:.0f}/s)",
            flush=True,
        )
        return found

    def _questions(self, number: int) -> list[str]:
        """Return questions that the model writes where a user would."""
        tokenizer = self._tokenizer
        pairs = zip(self._prompt("0"), self._prompt("A"), strict=False)
        start = [one for one, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)]
        params = self._params(1.0, _MAX_QUESTION_TOKENS)
        begins = (tokenizer.encode(self._chance.choice(_STARTS)) for _ in range(number))
        written = self._run(((start + list(begin), params) for begin in begins), math.inf)
        texts = (tokenizer.decode(text.tokens[len(start) :]) for text in written)
        lines = (text.split("\n")[0].strip() for text in texts)
        return [line for line in lines if len(line) > 8]

    def _first_prompts(self, questions: list[str]) -> Iterator[str]:
        share = _QUESTION_SHARE / (_QUESTION_SHARE + _TOPIC_SHARE)
        while True:
            if questions and self._chance.random() < share:
                yield questions.pop()
            else:
                request, topic = self._chance.choice(_REQUESTS), self._chance.choice(_TOPICS)
                yield request.format(topic)

    def _follow_ups(self, earlier: list[str]) -> Iterator[str]:
        while True:
            words = self._chance.choice(earlier).split(" ")[:_MAX_QUOTED_WORDS]
            yield self._chance.choice(_FOLLOW_UPS).format(" ".join(words))

    def _answers(self, prompts: Iterable[str], num_tokens: float) -> list[Text]:
        """Return answers of `num_tokens` tokens together; half of new prompts' are greedy."""
        return self._run(map(self._request, prompts), num_tokens)

    def _request(self, prompt: str) -> Request:
        args, is_new = self._args, prompt not in self._asked
        self._asked.add(prompt)
        temperature = self._chance.choice((0.0, args.temperature)) if is_new else args.temperature
        return self._prompt(prompt), self._params(temperature, args.max_tokens)

    def _prompt(self, text: str) -> list[int]:
        return list(self._tokenizer.prompt([{"role": "user", "content": text}]).ids)

    def _params(self, temperature: float, max_tokens: int) -> SamplingParams:
        return SamplingParams(
            temperature=temperature,
            top_p=0.95,
            max_tokens=max_tokens,
            seed=self._chance.getrandbits(32),
            stop_ids=tuple(self._tokenizer.eos_ids),
            speculate="off",
        )

    def _run(self, requests: Iterator[Request], num_tokens: float) -> list[Text]:
        """Answer requests until there are no more, or answers of `num_tokens` tokens."""
        longest, found = self._engine.ctx_size_tokens - 1, list[Text]()
        fitting = (r for r in requests if len(r[0]) + (r[1].max_tokens or 0) < longest)
        while (
            sum(text.num_written for text in found) < num_tokens
            and time.monotonic() < self._deadline
        ):
            some = list(itertools.islice(fitting, self._args.rows))
            if not some:
                break
            answers = self._answered(some)
            found += [
                Text(prompt + ids, len(prompt))
                for (prompt, _), ids in zip(some, answers, strict=True)
                if len(ids) >= _LEAST_TOKENS
            ]
        return found

    def _answered(self, requests: Sequence[Request]) -> list[list[int]]:
        """Return the answers to requests that run together."""
        engine, graphs = self._engine, self._engine.graphs.decode
        first, found = self._num_requests, [list[int]() for _ in requests]
        self._num_requests += len(requests)
        for key, (prompt, params) in enumerate(requests, first):
            engine.add(key, prompt, params)
        while engine.has_work:
            for key, event in engine.step():
                if isinstance(event, Tokens):
                    found[key - first] += event.ids
            if graphs is not None and _all_decode(engine):
                for sequence, ids in replayed(engine, graphs).items():
                    found[sequence.id - first] += ids
                    engine.cancel(sequence.id)
        return found


def _all_decode(engine: Engine) -> bool:
    scheduler = engine.scheduler
    running = scheduler.running
    return bool(running) and not scheduler.waiting and all(s.is_decoding for s in running)


@torch.inference_mode()
def replayed(engine: Engine, graphs: AsyncDecode) -> dict[TokenSequence, list[int]]:
    """Return the rest of all running answers, by captured steps alone.

    The engine's work for each token takes longer than a step of many rows. It must not go on with
    these answers.
    """
    graphs.drop()
    sequences, batch = list(engine.scheduler.running), graphs.graphs.batch
    num_steps = max((s.params.max_tokens or 0) - s.num_generated for s in sequences)
    for sequence in sequences:
        end = min(len(sequence.tokens) + num_steps + 1, engine.ctx_size_tokens)
        assert engine.scheduler.reserve(sequence, end)
    batch.load(sequences, [sequence.params.seed or 0 for sequence in sequences])
    rows, launched = list[Tensor](), deque[tuple[int, torch.cuda.Event]]()
    for step in range(num_steps + _STEPS_AHEAD):
        if step < num_steps:
            number, done = batch.num_steps, torch.cuda.Event()  # type: ignore[no-untyped-call]
            graphs.graphs.replay(len(sequences))
            done.record()
            launched.append((number, done))
        if step >= _STEPS_AHEAD:
            number, done = launched.popleft()
            done.synchronize()
            rows.append(batch.ring[number % len(batch.ring), : len(sequences)].clone())
    found = {}
    for sequence, ids in zip(sequences, torch.stack(rows, 1).tolist(), strict=True):
        left = (sequence.params.max_tokens or 0) - sequence.num_generated
        found[sequence] = list(itertools.takewhile(partial(_goes_on, sequence), ids[:left]))
    return found


def _goes_on(sequence: TokenSequence, token: int) -> bool:
    return token >= 0 and token not in sequence.params.stop_ids
