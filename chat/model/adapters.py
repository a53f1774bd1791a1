"""The adapters of a chat: those that are loaded, and those that the next answer uses."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from swiftchat.chat.options.config import ChatConfig
from swiftchat.engine.api.tuning import MAX_SCALE, Tuning
from swiftchat.errors import UsageError
from swiftchat.weights.files.paths import user_path

if TYPE_CHECKING:
    from swiftchat.weights.adapters.adapter import Adapter
    from swiftchat.weights.adapters.soft_prompt import SoftPrompt
    from swiftchat.weights.architectures.parts.model import ModelConfig


@dataclass(frozen=True)
class Weighted:
    """The text of a `--lora`: a path or a name, and the scale behind `=`, 1 by default."""

    text: str
    scale: float = 1.0

    @classmethod
    def parse(cls, text: str) -> "Weighted":
        """Parse DIR[=SCALE]; raises `UsageError` for a scale that is too large, or an empty DIR."""
        name, separator, number = text.rpartition("=")
        scale = _number(number) if separator and not user_path(text).exists() else None
        if scale is None:
            name, scale = text, 1.0
        if not name:
            raise UsageError(
                "--lora without a directory", "write it as --lora DIR or --lora DIR=0.5"
            )
        if not abs(scale) <= MAX_SCALE:
            raise UsageError(
                f"--lora {text}: the scale is not from -1000 to 1000", "1 is the adapter as trained"
            )
        return cls(name, scale)


class Adapters:
    """Adapters by name, checked against the model of `config`.

    `in_use` are the names that the next answer uses, with their scales; `soft_prompt` precedes it.
    Loading raises as `open_adapter` does, and `UsageError` with a remote engine.
    """

    def __init__(self, config: "Callable[[], ModelConfig]", *, is_remote: bool = False) -> None:
        self._config, self._is_remote = config, is_remote
        self.loaded: dict[str, Adapter] = {}
        self.in_use: dict[str, float] = {}
        self._scales: dict[str, float] = {}  # of the loading
        self.soft_prompt: SoftPrompt | None = None

    @property
    def tuning(self) -> Tuning | None:
        """What an answer's request says about adapters."""
        chosen = [(str(self.loaded[name].path), scale) for name, scale in self.in_use.items()]
        prompt = None if self.soft_prompt is None else str(self.soft_prompt.path)
        return Tuning(tuple(chosen), prompt) or None

    @property
    def num_virtual_tokens(self) -> int:
        return 0 if self.soft_prompt is None else self.soft_prompt.count

    def chosen(self, texts: Sequence[str]) -> Tuning | None:
        """Return what a request says about loaded adapters NAME[=SCALE], without the soft prompt.

        Without a scale an adapter has that of its loading. Raises `UsageError` for an unknown one.
        """
        scales = {}
        for each in map(Weighted.parse, texts):
            is_whole = each.text in texts  # it says no scale
            path = str(self._known(each.text).path)
            scales[path] = self._scales[each.text] if is_whole else each.scale
        return Tuning(tuple(scales.items())) or None

    def load(self, text: str) -> str:
        """Load DIR[=SCALE], add it to those in use, and return its name."""
        if self._is_remote:
            raise UsageError(
                "the engine of --connect reads no adapters of this machine",
                "leave out --connect, or merge the adapter on the engine's host",
            )
        # Imported here: numpy would delay the prompt.
        from swiftchat.weights.adapters.open import open_adapter

        weighted = Weighted.parse(text)
        adapter = open_adapter(user_path(weighted.text).absolute(), self._config())
        name = self._name_of(adapter)
        self.loaded[name] = adapter
        self.in_use[name] = self._scales[name] = weighted.scale
        return name

    def use(self, texts: Sequence[str]) -> None:
        """Use exactly the loaded adapters NAME[=SCALE]; raises `UsageError` for an unknown one."""
        chosen = {each.text: each.scale for each in map(Weighted.parse, texts)}
        for name in chosen:
            self._known(name)
        self.in_use = chosen

    def off(self) -> None:
        self.in_use = {}

    def _known(self, name: str) -> "Adapter":
        if name not in self.loaded:
            known = ", ".join(self.loaded) or "none is loaded"
            raise UsageError(f"no adapter {name!r} is loaded", f"known: {known}; /lora load DIR")
        return self.loaded[name]

    def _name_of(self, adapter: "Adapter") -> str:
        """Return the name of the adapter's folder; with a number if another one has it."""
        name, number = adapter.name, 2
        while name in self.loaded and self.loaded[name].path != adapter.path:
            name, number = f"{adapter.name}-{number}", number + 1
        return name


def open_adapters(config: ChatConfig, path: Path) -> Adapters | None:
    """Load `--lora` and `--soft-prompt` for the model in the folder `path`; None without any."""
    if not config.lora and config.soft_prompt is None:
        return None
    from swiftchat.weights.adapters.soft_prompt import open_soft_prompt
    from swiftchat.weights.model.directory import Model
    from swiftchat.weights.model.dummy import dummy_config

    shape = Model.open(path).config if config.dummy is None else dummy_config(config.dummy)
    adapters = Adapters(lambda: shape)
    for text in config.lora:
        adapters.load(text)
    if config.soft_prompt is not None:
        found = user_path(config.soft_prompt).absolute()
        adapters.soft_prompt = open_soft_prompt(found, shape)
    return adapters


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
