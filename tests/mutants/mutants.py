"""Deliberate faults, one for each promise of the program, and the tests that should notice them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """In `file`, `text` (which occurs once) is replaced by `replacement`.

    `tests` are names for pytest; at least one of them should fail then. `fault` says what is wrong.
    """

    fault: str
    file: str
    text: str
    replacement: str
    tests: tuple[str, ...]

    def apply(self, source: str) -> str:
        """Return the source with the fault; raises ValueError unless the text occurs once."""
        count = source.count(self.text)
        if count != 1:
            raise ValueError(f"{self.fault}: the text occurs {count} times in {self.file}")
        return source.replace(self.text, self.replacement)


_STORE = "tests/chat/history/test_store.py"
_KILLED = "tests/chat/history/test_killed_chats.py"
_SAMPLER = "tests/engine/sampling/test_sampler.py"
_ENGINE = "tests/engine/generation/test_engine.py"
_ADAPTED = "tests/engine/gpu/fused/test_emulated_adapters.py"
_FAILED_STEP = (
    "tests/engine/schedule/test_blocks.py"
    "::test_a_failed_step_leaves_nothing_unwritten_in_the_prefix_cache"
)
_ARRIVAL = "tests/weights/test_arrival.py"
_DOWNLOAD = "tests/weights/hub/test_download.py"
_LISTENER = "tests/engine/server/test_listener.py"
_PLACE = "tests/chat/builtin/test_place.py"
_INDEX = "tests/chat/knowledge/test_index.py"
_KNOWING = "tests/chat/knowledge/test_chats_with_knowledge.py"

_BUDGET = "tests/engine/generation/test_reasoning_budget.py"
_STAYING = "tests/chat/subcommands/test_staying_engines.py"
_ROOM = "tests/chat/endpoint/test_room_for_models.py"

MUTANTS = (
    # Reasoning.
    Mutant(
        "the budget of reasoning is exceeded by a token",
        "engine/schedule/reasoning.py",
        "return self.is_thinking and self.num_tokens >= self.budget",
        "return self.is_thinking and self.num_tokens > self.budget",
        (_BUDGET,),
    ),
    Mutant(
        "proposed tokens cross the end of the budget",
        "engine/schedule/sequence.py",
        "            return self.reasoning.num_left\n",
        "            return None\n",
        (f"{_BUDGET}::test_tokens_are_proposed_up_to_the_end_of_the_budget",),
    ),
    Mutant(
        "XTC excludes by the number that draws the token",
        "engine/sampling/filters.py",
        "_XTC_STREAM = 1 ",
        "_XTC_STREAM = 0 ",
        ("tests/engine/sampling/test_filters.py",),
    ),
    Mutant(
        "a row behind proposed tokens is sampled with the random number of the first",
        "engine/sampling/batch_sampler.py",
        "position=draw.position,",
        "position=None,",
        ("tests/engine/speculation/test_speculation.py",),
    ),
    # Conversations.
    Mutant(
        "a session is saved without a transaction",
        "chat/history/database.py",
        '    db.execute("BEGIN IMMEDIATE")\n',
        "    yield\n    return\n",
        (f"{_STORE}::test_a_failed_save_changes_nothing",),
    ),
    Mutant(
        "the last save of an answer is left out",
        "chat/turn/answer_saver.py",
        '            message.params["seed"] = answer.result.seed\n        self._save()\n',
        '            message.params["seed"] = answer.result.seed\n',
        (f"{_KILLED}::test_an_answer_is_saved_before_the_prompt_is_back",),
    ),
    Mutant(
        "an answer is not saved while it grows",
        "chat/turn/answer_saver.py",
        "_INTERVAL_S = 0.25",
        "_INTERVAL_S = 1e9",
        (f"{_KILLED}::test_a_killed_chat_continues_with_its_partial_answer",),
    ),
    Mutant(
        "files of the user have the mode 0644",
        "weights/files/private.py",
        "flags | os.O_CREAT, 0o600)\n    try:\n"
        "        if stat.S_IMODE(os.fstat(descriptor).st_mode) != 0o600:\n",
        "flags | os.O_CREAT, 0o644)\n    try:\n        if False:\n",
        ("tests/chat/test_private_files.py::test_only_the_user_can_read",),
    ),
    Mutant(
        "a damaged store is not set aside",
        "chat/history/database.py",
        "_DAMAGE_CODES = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)",
        "_DAMAGE_CODES = ()",
        (f"{_STORE}::test_a_damaged_file_is_renamed_with_a_warning",),
    ),
    Mutant(
        "the text of a removed conversation stays in the file",
        "chat/history/store.py",
        '        self._db.execute("PRAGMA secure_delete = ON")\n',
        '        self._db.execute("PRAGMA secure_delete = OFF")\n',
        (f"{_STORE}::test_removed_text_is_overwritten_in_the_files",),
    ),
    Mutant(
        "an imported conversation may set any option",
        "chat/options/chat_options.py",
        "        if name not in SESSION_OPTIONS:\n            continue\n",
        "",
        (
            "tests/chat/subcommands/test_sessions.py"
            "::test_an_imported_conversation_sets_no_option_that_is_not_saved",
        ),
    ),
    # The terminal.
    Mutant(
        "escape sequences are let through",
        "chat/terminal/sanitize.py",
        "if code not in (0x09, 0x0A)}",
        "if code not in (0x09, 0x0A, 0x1B)}",
        ("tests/chat/terminal/test_sanitize.py",),
    ),
    Mutant(
        "the mode of the terminal is not restored",
        "chat/terminal/keyboard.py",
        "            self._write(_BRACKETED_PASTE_OFF)\n"
        "        termios.tcsetattr(self._descriptor, termios.TCSANOW, self._attributes)\n",
        "            self._write(_BRACKETED_PASTE_OFF)\n",
        ("tests/chat/test_process.py::test_the_terminal_echoes_after_the_chat",),
    ),
    Mutant(
        "the cursor stays hidden after a signal",
        "chat/terminal/progress.py",
        "        console.show_cursor()\n",
        "        pass\n",
        ("tests/chat/terminal/test_progress.py",),
    ),
    Mutant(
        "SIGHUP is not handled",
        "chat/terminal/signals.py",
        "_EXIT_SIGNALS = (signal.SIGTERM, signal.SIGHUP)\n",
        "_EXIT_SIGNALS = (signal.SIGTERM,)\n",
        ("tests/chat/test_hangups.py::test_the_terminal_is_restored_and_the_answer_saved",),
    ),
    Mutant(
        "a tool is called without consent",
        "chat/turn/tool_rounds.py",
        "        while not self.toolbox.is_allowed(tool, self.conversation.id, action):\n",
        "        while False:\n",
        ("tests/chat/tools/test_oneshot_tools.py::test_a_tool_that_is_not_allowed_is_refused",),
    ),
    Mutant(
        "a tool follows a link that came after the question",
        "chat/builtin/place.py",
        "_NO_LINK = os.O_NOFOLLOW | os.O_CLOEXEC",
        "_NO_LINK = os.O_CLOEXEC",
        (f"{_PLACE}::test_a_link_that_comes_after_the_check_is_not_followed",),
    ),
    Mutant(
        "a tool may use a folder beside the working folder whose name begins with its name",
        "chat/builtin/place.py",
        """f"{self.path}/".startswith(f"{self.top.rstrip('/')}/")""",
        "self.path.startswith(self.top)",
        (f"{_PLACE}::test_places_outside_and_hidden_ones_have_a_warning",),
    ),
    Mutant(
        "a tool overwrites a file that has changed since its diff was shown",
        "chat/builtin/place.py",
        "if found != expected:",
        "if False:",
        (f"{_PLACE}::test_a_file_is_replaced_only_as_it_was_shown",),
    ),
    Mutant(
        "what a permission allows includes other places",
        "chat/tools/toolbox.py",
        "if action is not None and action.warning:",
        "if False:",
        ("tests/chat/builtin/test_tools_in_pipes.py::test_other_places_are_refused_always",),
    ),
    Mutant(
        "what a command of a tool has started goes on",
        "chat/builtin/program.py",
        "for pid in {process.pid, *found}:",
        "for pid in {process.pid}:",
        ("tests/chat/builtin/test_tools.py::test_nothing_that_a_command_starts_goes_on",),
    ),
    Mutant(
        "a page leads a tool into the user's own network",
        "chat/builtin/fetch.py",
        "if _is_near(_host(target)) and not _is_near(host):",
        "if False:",
        ("tests/chat/builtin/test_tools.py::test_fetch",),
    ),
    Mutant(
        "a session that an MCP server has forgotten is not renewed",
        "chat/tools/connection.py",
        "if is_gone or (self._has_ended and status in _OLDER):",
        "if False:",
        ("tests/chat/tools/test_http_servers.py::test_a_session_that_is_gone_is_renewed",),
    ),
    Mutant(
        "a full context is an internal error",
        "errors/__init__.py",
        "    exit_code = 5\n",
        "    exit_code = 1\n",
        ("tests/chat/model/test_overflow.py", "tests/chat/turn/test_one_shot.py"),
    ),
    # Templates and tokenizers.
    Mutant(
        "text of a message becomes a control token",
        "tokenizer/template/provenance.py",
        "    return str.__str__(text), _complement(own_ranges(text), len(text))\n",
        "    return str.__str__(text), []\n",
        ("tests/tokenizer/test_template.py::test_message_text_never_becomes_a_control_token",),
    ),
    Mutant(
        "a template has no time limit",
        "tokenizer/template/sandbox.py",
        "        if time.thread_time() > self.deadline:\n",
        "        if False:\n",
        ("tests/tokenizer/test_template_limits.py::test_time_limit",),
    ),
    Mutant(
        "a part of a stop string is shown",
        "tokenizer/core/stop_strings.py",
        "        keep = self._unfinished(text)\n",
        "        keep = len(text)\n",
        ("tests/tokenizer/test_stream.py::test_stop_matcher",),
    ),
    Mutant(
        "half a character is shown",
        "tokenizer/core/stream.py",
        "        return self._decoder.decode(self._token_bytes(token_id))\n",
        '        return self._token_bytes(token_id).decode("utf-8", "replace")\n',
        ("tests/tokenizer/test_stream.py::test_incomplete_character_is_held_back",),
    ),
    # Sampling.
    Mutant(
        "top-p keeps one token too few",
        "engine/sampling/filters.py",
        "    num_kept = 1 + int((cumulative[:-1] < top_p * total).sum())\n",
        "    num_kept = max(1, int((cumulative[:-1] < top_p * total).sum()))\n",
        (f"{_SAMPLER}::test_the_token_that_crosses_top_p_is_kept",),
    ),
    Mutant(
        "top-k keeps one token too many",
        "engine/sampling/filters.py",
        "    top_k = min(params.top_k or vocab_size, vocab_size)\n",
        "    top_k = min(params.top_k + 1 if params.top_k else vocab_size, vocab_size)\n",
        ("tests/engine/sampling/test_filters.py::test_candidates_equal_transformers",),
    ),
    Mutant(
        "the seed is ignored",
        "engine/sampling/philox.py",
        "philox4x32(counter, (seed & _MASK, seed >> 32))",
        "philox4x32(counter, (zero, zero))",
        (
            f"{_SAMPLER}::test_a_seed_repeats_and_another_differs",
            "tests/engine/sampling/test_batch_sampler.py::test_random_numbers_of_many_draws",
        ),
    ),
    Mutant(
        "the repetition penalty makes negative logits larger",
        "engine/sampling/penalties.py",
        "torch.where(old > 0, old / penalty, old * penalty)",
        "old / penalty",
        (f"{_SAMPLER}::test_repetition_penalty_applies_once_per_id_for_either_sign",),
    ),
    # The engine.
    Mutant(
        "cancel is ignored",
        "engine/server/serve.py",
        '                    self._cancel(engine, terminal, command["id"])\n',
        "                    pass\n",
        ("tests/engine/test_worker.py::test_cancel_ends_a_generation_and_the_next_is_correct",),
    ),
    Mutant(
        "a canceled generation keeps its blocks",
        "engine/generation/engine.py",
        "self.scheduler.remove(generation.sequence)\n            self._pending.append",
        "self._pending.append",
        (f"{_ENGINE}::test_cancel_after_any_step_leaves_a_valid_cache",),
    ),
    Mutant(
        "a shared block is freed with its first sequence",
        "engine/schedule/blocks.py",
        "            if self._ref_counts[block]:\n                continue\n",
        "",
        (f"{_ENGINE}::test_batched_equals_alone", "tests/engine/schedule/test_blocks.py"),
    ),
    Mutant(
        "a step that is computed ahead overwrites the state before it",
        "engine/schedule/states.py",
        "            slots = sequence.spare_slot, sequence.state_slot\n",
        "            slots = sequence.state_slot, sequence.spare_slot\n",
        ("tests/engine/schedule/test_blocks.py",),
    ),
    Mutant(
        "the state after a rejected token stays",
        "engine/schedule/states.py",
        "sequence.verified_slots.pop(0)",
        "sequence.verified_slots.pop()",
        ("tests/engine/schedule/test_blocks.py",),
    ),
    Mutant(
        "the norm of a group is that of one rank's part",
        "engine/reference/mixers/mamba2.py",
        "/ (mixer.width * mixer.ranks_per_group)",
        "/ mixer.width",
        ("tests/engine/reference/mixers/test_mixer_ranks.py::test_ranks_equal_transformers",),
    ),
    Mutant(
        "a cached block is found behind another prefix",
        "engine/schedule/content.py",
        'hashlib.sha256(parent + array("i", tokens).tobytes())',
        'hashlib.sha256(array("i", tokens).tobytes())',
        (
            "tests/engine/schedule/test_blocks.py"
            "::test_the_identity_of_a_block_includes_all_tokens_before_it",
        ),
    ),
    Mutant(
        "a block that matches in part is not copied",
        "engine/schedule/scheduler.py",
        "            copies.append((prefix.tail, block))\n",
        "",
        ("tests/engine/model/test_decoder.py::test_reused_prefix_equals_recomputed_prefix",),
    ),
    Mutant(
        "the rotary base of the model is ignored",
        "engine/model/rope.py",
        "_scale(rope, rope.theta**-exponents, rotated",
        "_scale(rope, 10_000.0**-exponents, rotated",
        ("tests/engine/model/test_decoder.py::test_rope_angles_are_exact_at_long_positions",),
    ),
    Mutant(
        "a damaged block of a KV file is used",
        "engine/kv_store/run_file.py",
        "            checksum = zlib.crc32(view, checksum)\n",
        "            checksum = 0\n",
        ("tests/engine/kv_store/test_disk.py", "tests/engine/kv_store/test_run_file.py"),
    ),
    Mutant(
        "a KV file is readable for others",
        "engine/kv_store/run_file.py",
        "os.fchmod(file, 0o600)",
        "os.fchmod(file, 0o644)",
        ("tests/engine/kv_store",),
    ),
    Mutant(
        "the worker outlives its terminal",
        "engine/worker.py",
        '        self._exit(EngineStopped("the engine was ended by its terminal", RESTART_HINT))\n',
        "        threading.Event().wait()\n",
        ("tests/chat/test_lost_processes.py::test_the_ranks_end_with_the_terminal",),
    ),
    Mutant(
        "an engine listens on all interfaces",
        "engine/api/address.py",
        "            if not (allow_remote or ipaddress.ip_address(resolved[0]).is_loopback):\n",
        "            if False:\n",
        (f"{_LISTENER}::test_listening_only_on_loopback_and_free_addresses",),
    ),
    Mutant(
        "any token is accepted",
        "engine/server/listener.py",
        "        return isinstance(token, str) and secrets.compare_digest(\n",
        "        return isinstance(token, str) or secrets.compare_digest(\n",
        (f"{_LISTENER}::test_wrong_token_closes_the_connection_without_answer",),
    ),
    Mutant(
        "a damaged cubin is trusted",
        "cuda/cubin_cache.py",
        "    return cubin if hashlib.sha256(cubin).digest() == entry[:_DIGEST_BYTES] else None\n",
        "    return cubin\n",
        ("tests/cuda/test_cubin_cache.py",),
    ),
    # Model files.
    Mutant(
        "the SHA-256 of a download is not checked",
        "weights/hub/listing.py",
        "        return hasher.hexdigest() == self.digest\n\n    def matches(",
        "        return True\n\n    def matches(",
        (f"{_DOWNLOAD}::test_a_damaged_file_in_the_cache_is_replaced",),
    ),
    Mutant(
        "an interrupted download begins anew",
        "weights/hub/blobs.py",
        "            offset = out.seek(0, os.SEEK_END)\n",
        "            offset = 0\n",
        (f"{_DOWNLOAD}::test_an_interrupted_download_is_resumed",),
    ),
    Mutant(
        "a conversion takes no lock",
        "weights/convert/convert.py",
        "        with exclusive_lock(destination, report_waiting):\n",
        "        if True:\n",
        (
            "tests/weights/convert/test_atomic_convert.py"
            "::test_of_two_processes_one_converts_and_one_waits",
        ),
    ),
    Mutant(
        "a partial directory of a killed conversion stays",
        "weights/files/disk.py",
        "        shutil.rmtree(stale)\n",
        "        pass\n",
        (
            "tests/weights/convert/test_atomic_convert.py"
            "::test_partial_directories_of_killed_processes_are_removed",
        ),
    ),
    Mutant(
        "a tensor beyond the end of its file is accepted",
        "weights/formats/safetensors.py",
        "    if data_start + end > size:\n",
        "    if False:\n",
        ("tests/weights/model/test_checkpoint.py",),
    ),
    Mutant(
        "overlapping tensors are accepted",
        "weights/formats/safetensors.py",
        "    reject_overlaps(path, tensors.values())\n    return tensors, metadata\n",
        "    return tensors, metadata\n",
        (
            "tests/weights/model/test_checkpoint.py::test_an_invalid_header_raises_an_error_that_names_the_file",
        ),
    ),
    Mutant(
        "a written shard is not opened with the safetensors library",
        "weights/formats/safetensors.py",
        "    _prove(path, tensors, metadata)\n",
        "",
        ("tests/weights/convert/test_atomic_convert.py", "tests/weights/model/test_checkpoint.py"),
    ),
    Mutant(
        "what a killed conversion has written counts without a comparison",
        "weights/formats/safetensors.py",
        "                if found == checksums[name]:\n",
        "                if True:\n",
        (f"{_ARRIVAL}::test_what_a_crash_has_damaged_is_made_again",),
    ),
    Mutant(
        "a weight file stays when it is quantized",
        "weights/arrival.py",
        "                found.unlink()\n",
        "                pass\n",
        (f"{_ARRIVAL}::test_at_most_one_weight_file_is_on_the_disk",),
    ),
    # Adapters, blocks of failed steps, coverage.
    Mutant(
        "virtual tokens are published before they are stored",
        "engine/schedule/scheduler.py",
        "            sequence.num_computed += sequence.num_to_store\n",
        "            self.advance(Row(sequence, sequence.num_to_store))\n",
        (_FAILED_STEP,),
    ),
    Mutant(
        "the blocks of a failed step stay in the prefix cache",
        "engine/schedule/scheduler.py",
        "            sequence.num_computed = 0\n",
        "            pass\n",
        (_FAILED_STEP,),
    ),
    Mutant(
        "captured steps do not know the adapters of their rows",
        "engine/gpu/inputs/decode_batch.py",
        'host["adapter_sets"][rows] = sequence.tuning.set_index',
        "pass",
        (f"{_ADAPTED}::test_captured_steps_use_adapters",),
    ),
    Mutant(
        "a capture without memory ends all answers",
        "engine/gpu/steps/async_decode.py",
        "(OutOfMemory, torch.OutOfMemoryError):\n            return False\n",
        "OutOfMemory:\n            return False\n",
        (f"{_ADAPTED}::test_without_memory_for_a_new_graph_answers_go_on",),
    ),
    Mutant(
        "a pending norm reads the stream after its next change",
        "engine/gpu/fused/ops.py",
        "                computed(reading)\n",
        "                pass\n",
        ("tests/engine/gpu/fused/test_pending.py",),
    ),
    Mutant(
        "a rank goes on without an adapter that another one cannot load",
        "engine/comm/agreement.py",
        "    if not is_everywhere:\n",
        "    if False:\n",
        ("tests/engine/comm/test_agreement.py",),
    ),
    # Documents, knowledge, commands and pages.
    Mutant(
        "an archive may unpack to any size",
        "chat/documents/reader.py",
        "_MAX_UNPACKED_BYTES = 512 << 20",
        "_MAX_UNPACKED_BYTES = 512 << 40",
        ("tests/chat/attachments/test_documents.py::test_archives_that_unpack_to_too_much",),
    ),
    Mutant(
        "a file that has changed is not indexed again",
        "chat/knowledge/index.py",
        "before is not None and before[:2] == stamp",
        "before is not None",
        (f"{_INDEX}::test_only_what_has_changed_is_indexed_again",),
    ),
    Mutant(
        "the embeddings of a file are computed at each update",
        "chat/knowledge/index.py",
        "before is not None and before[2] == digest",
        "False",
        (f"{_INDEX}::test_only_what_has_changed_is_indexed_again",),
    ),
    Mutant(
        "links out of a folder of knowledge are read",
        "chat/attachments/folder.py",
        "entry.is_file(follow_symlinks=False)",
        "entry.is_file()",
        ("tests/chat/attachments/test_folder.py::test_links_are_not_followed",),
    ),
    Mutant(
        "a question that is asked again gets other passages",
        "chat/knowledge/question.py",
        "    if passages_in(message):\n",
        "    if False:\n",
        (f"{_KNOWING}::test_an_edited_question_keeps_its_passages",),
    ),
    Mutant(
        "passages may fill the context",
        "chat/knowledge/knowledge.py",
        "if size_with <= max_tokens and",
        "if",
        (f"{_KNOWING}::test_the_share_of_the_context_is_bounded",),
    ),
    Mutant(
        "a question takes any answer but no for the first of its choices",
        "chat/terminal/consent.py",
        "if word in (letter, _WORDS[letter]):",
        'if word not in ("", "n", "no") or word in (letter, _WORDS[letter]):',
        ("tests/chat/subcommands/test_do.py",),
    ),
    Mutant(
        "a part of a proposed command may be invisible",
        "chat/subcommands/do.py",
        "    command = proposal.command\n    print(escape_invisible(command))\n",
        "    command = proposal.command\n    print(command)\n",
        ("tests/chat/subcommands/test_do.py::test_nothing_in_a_command_is_invisible",),
    ),
    Mutant(
        "a question is HTML in an exported page",
        "chat/render/web_page.py",
        "    return escape(sanitize_prose(text))\n",
        "    return sanitize_prose(text)\n",
        ("tests/chat/render/test_web_page.py",),
    ),
    Mutant(
        "an exported page links to any scheme",
        "chat/render/web_page.py",
        "        if _LINKED.fullmatch(address) is None:\n",
        "        if False:\n",
        ("tests/chat/render/test_web_page.py",),
    ),
    # Engines that stay, and several models in one server.
    Mutant(
        "an engine that stays ends with the chat that started it",
        "engine/worker.py",
        "        if self._stays:\n            return\n",
        "",
        (f"{_STAYING}::test_the_next_one_shot_uses_the_engine_of_the_first",),
    ),
    Mutant(
        "an engine ends while a chat is connected",
        "engine/server/serve.py",
        "if self.keep_alive_s is None or self.num_guests:",
        "if self.keep_alive_s is None:",
        (f"{_STAYING}::test_an_open_chat_keeps_its_engine",),
    ),
    Mutant(
        "a model leaves while it answers",
        "chat/endpoint/installed_models.py",
        "            while leaving.num_requests:\n",
        "            while False:\n",
        (f"{_ROOM}::test_one_that_answers_leaves_after_that",),
    ),
    Mutant(
        "a model leaves while a chat is attached to it",
        "chat/endpoint/installed_models.py",
        "if not chats.get(name)]",
        "if name]",
        (f"{_ROOM}::test_chats_keep_their_models",),
    ),
)
