"""Statistics of an answer (speed) and of the engine (memory) as text."""

from swiftchat.chat.model.answer import Answer
from swiftchat.engine.api.protocol import EngineInfo


def rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def speeds(answer: Answer) -> dict[str, float | None]:
    """Return `prompt_tps` and `completion_tps` in tokens/s; cached tokens do not count."""
    computed = answer.num_prompt_tokens - (answer.result.cached_tokens if answer.result else 0)
    prompt_tps = computed / answer.ttft_s if answer.ttft_s else None
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
        f"{first} · load {load_s:.2f} s · prompt {answer.num_prompt_tokens} tokens "
        f"({_num_cached(answer)} cached), {_per_s(rates['prompt_tps'])} · "
        f"answer {answer.num_tokens} tokens, {_per_s(rates['completion_tps'])} · "
        f"{answer.finish_reason}{host_sampling(answer, info, before=' · ')}"
    )


def host_sampling(answer: Answer, info: EngineInfo, before: str = "") -> str:
    """Describe why decode steps were not replayed, after `before`; empty if they were."""
    controls = answer.params.host_controls
    if not (info.replays_steps and controls):
        return ""
    return f"{before}slower: the host samples because of {', '.join(controls)}"


def answer_rows(answer: Answer, info: EngineInfo | None) -> dict[str, str]:
    """Return what `/stats` shows about the last answer, by label."""
    sampling = host_sampling(answer, info) if info else ""
    rates, prompt = speeds(answer), answer.num_prompt_tokens
    cached = _num_cached(answer)
    percent = 100 * cached // max(1, prompt)
    return {
        "answer": f"{answer.num_tokens} tokens, {_per_s(rates['completion_tps'])}",
        "prompt": f"{prompt} tokens, first token after {answer.ttft_s or 0:.2f} s, "
        f"{_per_s(rates['prompt_tps'])}",
        "cache hits": f"{cached} of {prompt} prompt tokens ({percent} %) were computed before",
        **({"sampling": sampling} if sampling else {}),
    }


def _num_cached(answer: Answer) -> int:
    return answer.result.cached_tokens if answer.result else 0


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
    kv_dtype = "" if info.kv_dtype in ("auto", info.dtype) else f" in {info.kv_dtype}"
    return (
        f"{devices}, {info.dtype} · weights {weights / 1e9:.2f} GB{unit} · "
        f"cache for {info.cache_tokens} tokens{kv_dtype} {cache / 1e9:.2f} GB{unit}{workspace}"
    )
