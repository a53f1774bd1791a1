"""Statistics of an answer (speed) and of the engine (memory) as text."""

from collections.abc import Mapping, Sequence

from swiftchat.chat.model.answer import Answer
from swiftchat.engine.api.protocol import EngineInfo


def rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def speeds(answer: Answer) -> dict[str, float | None]:
    """Return `prompt_tps` and `completion_tps` in tokens/s; cached tokens do not count.

    An interrupted answer has no `prompt_tps`: only the engine's report says what was cached.
    """
    result, prompt_tps = answer.result, None
    if result is not None:
        prefill_s = result.prefill_s if answer.beams else answer.ttft_s
        computed = answer.num_prompt_tokens - result.cached_tokens
        prompt_tps = computed / prefill_s if prefill_s else None
    return {"prompt_tps": rounded(prompt_tps), "completion_tps": rounded(answer.tokens_per_s)}


def stats_line(
    answer: Answer, info: EngineInfo, load_s: float, age_at_start_s: float | None = None
) -> str:
    """Return one line on loading time, prompt, speed, finish reason and sampling on the host.

    With the age of the process at the start of the answer, the first token counts from the start
    of the command.
    """
    rates, ttft_s = speeds(answer), answer.ttft_s or 0.0
    first = f"first token {ttft_s:.2f} s"
    if age_at_start_s is not None:
        first = f"first token {age_at_start_s + ttft_s:.2f} s after the start of the command"
    return (
        f"{first} · load {load_s:.2f} s · prompt {answer.num_prompt_tokens} tokens"
        f"{_cached(answer)}, {_per_s(rates['prompt_tps'])} · "
        f"answer {_tokens(answer)}, {_per_s(rates['completion_tps'])}, "
        f"finish reason {answer.finish_reason}"
        f"{speculation(answer, info, before=' · speculation: ')}"
        f"{host_sampling(answer, info, before=' · ')}"
    )


def running_text(answer: Answer, columns: int) -> str:
    """Return what there is to say below an answer that is generated, as much as fits a row."""
    speed, budget = answer.tokens_per_s, answer.params.reasoning_budget
    thinking = f"thinking {answer.num_reasoning_tokens}"
    thinking += " tokens" if budget is None else f"/{budget}"
    parts = (
        thinking if answer.is_thinking else f"{answer.num_tokens} tokens",
        f"{answer.age_s:.0f} s",
        f"{speed:.1f} tok/s" if speed else "",
        "Ctrl-C stops",
    )
    text = ""
    for part in filter(None, parts):
        longer = f"{text} · {part}" if text else part
        text = longer if len(longer) <= columns else text
    return text


def slid_text(answer: Answer) -> str:
    """Describe what a sliding context has dropped while the answer was generated."""
    return (
        f"the context was full: {answer.num_slid} tokens in its middle were dropped, "
        "and the answer went on (--overflow sliding)"
    )


def timeline(phases: Sequence[tuple[str, float]], began: float) -> str:
    """Return a line for each phase of the start: its begin in seconds after `began`, its name."""
    rows = (f"  {at - began:6.2f}  {label}" for label, at in phases)
    return "\n".join(("start-up, seconds after the command began:", *rows))


def speculation(answer: Answer, info: EngineInfo | None, before: str = "") -> str:
    """Describe what speculation brought or why it was off, after `before`; empty without either."""
    if answer.result is None or answer.params.speculate == "off":
        return ""
    found = answer.result.speculated
    if found is None:
        if answer.is_constrained:
            return f"{before}off: the answer has a grammar"
        controls = answer.params.unverified_controls if info and info.replays_steps else ()
        return f"{before}off because of {', '.join(controls)}" if controls else ""
    return (
        f"{before}{found.proposer} · {100 * found.acceptance_rate:.0f} % of {found.num_proposed} "
        f"proposed tokens accepted, {found.mean_accepted:.1f} per step · "
        f"{found.gain:.2f} × the speed of plain decoding"
    )


def speculation_json(answer: Answer) -> dict[str, str | int | float] | None:
    """Return the same for JSON, None if no tokens were proposed."""
    found = answer.result.speculated if answer.result else None
    if found is None:
        return None
    return {
        "proposer": found.proposer,
        "steps": found.num_steps,
        "proposed_tokens": found.num_proposed,
        "accepted_tokens": found.num_accepted,
        "acceptance_rate": round(found.acceptance_rate, 4),
        "mean_accepted_tokens": round(found.mean_accepted, 4),
        "gain": round(found.gain, 4),
    }


def host_sampling(answer: Answer, info: EngineInfo, before: str = "") -> str:
    """Describe why decode steps were not replayed, after `before`; empty if they were."""
    controls = answer.params.host_controls
    if answer.is_constrained and info.pp > 1:
        controls = (*controls, "a grammar")
    if not (info.replays_steps and controls):
        return ""
    return f"{before}slower: the host samples because of {', '.join(controls)}"


def answer_rows(answer: Answer, info: EngineInfo | None) -> dict[str, str]:
    """Return what `/stats` shows about the last answer, by label."""
    sampling, speculated = host_sampling(answer, info) if info else "", speculation(answer, info)
    rates, prompt = speeds(answer), answer.num_prompt_tokens
    hits = "not known: the answer was interrupted"
    if answer.result is not None:
        cached = answer.result.cached_tokens
        percent = 100 * cached // max(1, prompt)
        hits = f"{cached} of {prompt} prompt tokens ({percent} %) were computed before"
    return {
        "answer": f"{_tokens(answer)}, {_per_s(rates['completion_tps'])}",
        "prompt": f"{prompt} tokens, first token after {answer.ttft_s or 0:.2f} s, "
        f"{_per_s(rates['prompt_tps'])}",
        "cache hits": hits + _origins(answer),
        **({"speculation": speculated} if speculated else {}),
        **({"sampling": sampling} if sampling else {}),
    }


def _tokens(answer: Answer) -> str:
    """Return the number of tokens of an answer, and how many of them are reasoning."""
    thinking = f" ({answer.num_reasoning_tokens} thinking)" if answer.num_reasoning_tokens else ""
    return f"{answer.num_tokens} tokens{thinking}"


def _cached(answer: Answer) -> str:
    """Return how many tokens were cached and where, and how many were computed, if known."""
    if answer.result is None:
        return ""
    cached = answer.result.cached_tokens
    return f" ({cached} cached{_origins(answer)}, {answer.num_prompt_tokens - cached} computed)"


def _origins(answer: Answer) -> str:
    """Return how many cached tokens came from the disk and from main memory, if any did."""
    result = answer.result
    if result is None or not (result.restored_tokens or result.swapped_tokens):
        return ""
    origins = {"the disk": result.restored_tokens, "main memory": result.swapped_tokens}
    return f": {', '.join(f'{num} from {where}' for where, num in origins.items() if num)}"


def block_row(counters: Mapping[str, int]) -> str:
    """Return how many KV blocks there are on the device, in main memory and on disk."""
    used, cached = counters["used_blocks"], counters["cached_blocks"]
    parts = [f"{used} used and {cached} cached of {counters['num_blocks']} on the device"]
    if "host_blocks" in counters:
        parts.append(f"{counters['host_blocks']} in main memory")
    if "disk_blocks" in counters:
        parts.append(f"{counters['disk_blocks']} on disk")
    return f"{', '.join(parts)}, of {counters['block_size']} tokens"


def _per_s(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f} tok/s"


def memory_line(info: EngineInfo) -> str:
    """Return one line on the engine's devices, weights, KV cache and activations."""
    count, weights, cache, unit = info.tp * info.pp, info.weights_bytes, info.cache_bytes, ""
    devices = f"{count} × {info.device}" if count > 1 else info.device
    if info.pp > 1:  # stages differ in size: show the sum
        weights, cache, unit = weights * info.tp, cache * info.tp, " in total"
    elif info.tp > 1:
        unit = " each"
    workspace = (
        f" · activations {info.workspace_bytes / 1e9:.2f} GB" if info.workspace_bytes else ""
    )
    scales = info.unread_input_scales
    unread = f", {scales} scales of activations not used" if scales else ""
    on_host = f", {info.host_bytes / 1e9:.2f} GB of them in main memory" if info.host_bytes else ""
    kv_dtype = "" if info.kv_dtype in ("auto", info.dtype) else f" in {info.kv_dtype}"
    return (
        f"{devices}, {info.dtype} · weights {weights / 1e9:.2f} GB{unit}{on_host}{unread} · "
        f"cache for {info.cache_tokens} tokens{kv_dtype} {cache / 1e9:.2f} GB{unit}{workspace}"
    )
