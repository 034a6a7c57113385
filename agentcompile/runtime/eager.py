"""The same request through Hugging Face's eager `generate`: the baseline that a compiled model is compared with."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from agentcompile.checkpoint import Checkpoint
from agentcompile.errors import AgentCompileError
from agentcompile.ops.reference import DTYPES
from agentcompile.runtime.sampling import Sampling
from agentcompile.runtime.text import TextStream, Tokenizer


def load(path: Path, dtype: torch.dtype | None = None) -> Any:
    """Load the checkpoint as Hugging Face runs it, in the dtype of its weights or in `dtype`, without the network.

    The attention implementation and the form of results that config.json names are ignored: the library it names may
    not be installed, and a captured model is compared with PyTorch's own attention.

    Raises:
        AgentCompileError: transformers cannot load it, for example because it is a saved module (usage).
    """
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import logging

    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    auto: Any = AutoModelForCausalLM
    kind = dtype or DTYPES[Checkpoint.open(path).element_type()]
    try:
        config: Any = AutoConfig.from_pretrained(str(path), local_files_only=True, trust_remote_code=False)
        config._attn_implementation = None
        config.return_dict = True
        model: Any = auto.from_pretrained(str(path), config=config, dtype=kind, local_files_only=True)
    except (OSError, ValueError, KeyError, ImportError) as error:
        reason = (str(error).strip().splitlines() or [""])[0]
        text = f"{path}: transformers cannot run this checkpoint eagerly: {reason}"
        raise AgentCompileError(text, hint="only a checkpoint of transformers can be compared with eager") from error
    return model.eval()


def pieces(
    path: Path, prompt: str | Sequence[int], max_new_tokens: int, sampling: Sampling
) -> Iterator[tuple[str, int]]:
    """Yield text and its number of tokens as eager `generate` makes them, from the checkpoint at `path`.

    Raises:
        BaseException: `generate` failed; what it raised in its thread is raised here.
    """
    needed = isinstance(prompt, str) or (path / "tokenizer.json").is_file()  # ids can do without
    tokenizer = Tokenizer(path) if needed else None
    model = load(path)
    settings: dict[str, Any] = {"do_sample": not sampling.greedy, "max_new_tokens": max_new_tokens}
    if not sampling.greedy:
        settings |= {"temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": sampling.top_k}
    torch.manual_seed(sampling.seed)
    ids = torch.tensor([tokenizer.encode(prompt) if tokenizer and isinstance(prompt, str) else list(prompt)])
    made: queue.SimpleQueue[int | BaseException | None] = queue.SimpleQueue()
    threading.Thread(target=_run, args=(model, ids, settings, made), daemon=True).start()
    stream = None if tokenizer is None else TextStream(tokenizer)
    while (item := made.get()) is not None:
        if isinstance(item, BaseException):
            raise item
        yield "" if stream is None else stream.push([item]), 1
    yield "" if stream is None else stream.finish(), 0


class _Streamer:
    """A streamer for `generate`, which calls it with the prompt first and with every new token after that."""

    def __init__(self, made: queue.SimpleQueue[int | BaseException | None]) -> None:
        self._made = made
        self._prompt = True

    def put(self, value: torch.Tensor) -> None:
        if not self._prompt:
            for token in value.flatten().tolist():
                self._made.put(int(token))
        self._prompt = False

    def end(self) -> None:
        """Do nothing: the end of the thread marks the end of the generation."""


def _run(
    model: Any, ids: torch.Tensor, settings: dict[str, Any], made: queue.SimpleQueue[int | BaseException | None]
) -> None:
    try:
        with torch.inference_mode():
            model.generate(ids, attention_mask=torch.ones_like(ids), streamer=_Streamer(made), **settings)
        made.put(None)
    except BaseException as error:  # noqa: BLE001 - the reader raises it where the caller sees it
        made.put(error)
