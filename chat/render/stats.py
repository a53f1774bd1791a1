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


def stats_line(answer: Answer, load_s: float) -> str:
    """Return one line on loading time, prompt, speed and finish reason."""
    rates = speeds(answer)
    cached = answer.result.cached_tokens if answer.result else 0

    def per_s(value: float | None) -> str:
        return "–" if value is None else f"{value:.1f} tok/s"

    return (
        f"load {load_s:.2f} s · prompt {answer.num_prompt_tokens} tokens ({cached} cached) · "
        f"first token {answer.ttft_s or 0:.2f} s, {per_s(rates['prompt_tps'])} · "
        f"answer {answer.num_tokens} tokens, {per_s(rates['completion_tps'])} · "
        f"{answer.finish_reason}"
    )


def memory_line(info: EngineInfo) -> str:
    """Return one line on the engine's devices, weights, KV cache and context."""
    count, weights, cache, unit = info.tp * info.pp, info.weights_bytes, info.cache_bytes, ""
    devices = f"{count} × {info.device}" if count > 1 else info.device
    if info.pp > 1:  # stages differ in size: show the sum
        weights, cache, unit = weights * info.tp, cache * info.tp, " in total"
    elif info.tp > 1:
        unit = " each"
    kv_dtype = "" if info.kv_dtype in ("auto", info.dtype) else f" in {info.kv_dtype}"
    return (
        f"{devices}, {info.dtype} · weights {weights / 1e9:.2f} GB{unit} · "
        f"cache for {info.cache_tokens} tokens{kv_dtype} {cache / 1e9:.2f} GB{unit} · "
        f"context {info.ctx_size_tokens}"
    )
