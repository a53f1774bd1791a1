"""The files of a model that the chat needs, loaded in the background."""

import threading
from pathlib import Path
from typing import TYPE_CHECKING

from swiftchat.chat.model.template_choice import TemplateChoice, choose_template
from swiftchat.chat.options.config import ChatConfig
from swiftchat.chat.options.model_defaults import invalid_model_defaults
from swiftchat.chat.options.token_texts import TokenTexts

if TYPE_CHECKING:
    from swiftchat.tokenizer import Tokenizer
    from swiftchat.weights.model.directory import Model


class ModelFiles:
    """The configuration, tokenizer and chat template in the folder `path`.

    `prepare` (or the first use) loads them. Using a file that could not be loaded raises the error
    of loading it.
    """

    def __init__(self, path: Path, config: ChatConfig) -> None:
        self._path, self._config = path, config
        self._failure: Exception | None = None
        self._loading: threading.Thread | None = None
        self._has_told_notes = False

    @property
    def name(self) -> str:
        return self._path.name

    @property
    def model(self) -> "Model":
        self.wait()
        return self._model

    @property
    def tokenizer(self) -> "Tokenizer":
        self.wait()
        return self._tokenizer

    @property
    def token_texts(self) -> TokenTexts:
        self.wait()
        return self._token_texts

    @property
    def template(self) -> TemplateChoice:
        """The chat template; with `--no-template` an empty choice."""
        self.wait()
        return self._template

    @property
    def template_source(self) -> str:
        """The text of the chat template; empty if there is none."""
        return self.template.source or self.tokenizer.template or ""

    def new_notes(self) -> tuple[str, ...]:
        """Return what is left out of the model's files the first time, nothing after that."""
        told, self._has_told_notes = self._has_told_notes, True
        if told:
            return ()
        invalid = invalid_model_defaults(self.model.generation_config)
        ignored = [f"generation_config.json: {name} is ignored: not valid" for name in invalid]
        return (*self.model.notes, *ignored)

    def prepare(self) -> None:
        """Load the files in the background; later calls do nothing."""
        if self._loading is None:
            self._loading = threading.Thread(target=self._load, name="tokenizer", daemon=True)
            self._loading.start()

    def wait(self) -> None:
        """Wait until the files are loaded. Raises the error of loading."""
        self.prepare()
        assert self._loading is not None
        self._loading.join()
        if self._failure is not None:
            raise self._failure

    def _load(self) -> None:
        try:
            self._load_files()
        except Exception as error:  # noqa: BLE001  (raised again when the files are used)
            self._failure = error

    def _load_files(self) -> None:
        # Imported here: numpy would delay the prompt by 0.1 s.
        from swiftchat.tokenizer import Tokenizer
        from swiftchat.tokenizer.template.process import TemplateProcess

        templates = TemplateProcess()
        if not self._config.no_template:
            templates.start()  # first: its start takes as long as all that follows
        from swiftchat.weights.model.directory import Model

        self._model = Model.open(self._path)
        self._tokenizer = Tokenizer.load(self._path, templates)
        self._token_texts = TokenTexts(self._tokenizer)
        self._template = self._choose_template()

    def _choose_template(self) -> TemplateChoice:
        from swiftchat.weights.architectures.registry import ARCHITECTURES

        if self._config.no_template:
            return TemplateChoice("none")
        model_type = ARCHITECTURES[self._model.config.architecture].model_type
        return choose_template(self._config.template, self._tokenizer, model_type)
