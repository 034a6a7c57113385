"""The tokenizer of a GGUF file as tokenizer.json, with its chat template.

transformers builds it from the vocabulary and the merges. How a text is split before merges apply is named by
`tokenizer.ggml.pre`; names that transformers leaves out are read here as llama.cpp reads them, and a name that nobody
knows gives no tokenizer rather than a wrong one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agentcompile.checkpoint.gguf_file import GgufFile

LLAMA3 = ("llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral", "midm-2.0")
"""Splits of Llama 3: a word that is a token is never merged from parts, and a text begins with its first token."""
TEKKEN = "tekken"
QWEN2 = ("qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez")
DIGITS = ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b")
"""GPT-2's split, with every digit by itself."""
GPT2 = ("gpt-2", "default", "mpt", "olmo", "jais", "phi-2", "trillion", "granite-docling")
KNOWN = (*LLAMA3, TEKKEN, *QWEN2, *DIGITS, *GPT2)


def write_tokenizer(file: GgufFile, out: Path) -> str:
    """Write tokenizer.json and its settings to the directory `out`; return why there is none, or "" where there is.

    Raises:
        OSError: a file cannot be written.
    """
    kind, pre = file.get("tokenizer.ggml.model"), file.get("tokenizer.ggml.pre", "default")
    if kind is None or file.get("tokenizer.ggml.tokens") is None:
        return "the file has no tokenizer"
    if kind not in ("gpt2", "llama"):
        return f"tokenizer.ggml.model {kind!r} is not supported"
    if kind == "gpt2" and pre not in KNOWN:
        return f"tokenizer.ggml.pre {pre!r} is not supported"
    if kind == "gpt2" and file.get("tokenizer.ggml.merges") is None:
        return "the file has no merges"
    from transformers import PreTrainedTokenizerFast

    made: Any = PreTrainedTokenizerFast
    more: dict[str, Any] = {}
    if kind == "gpt2" and pre in LLAMA3 and file.get("tokenizer.ggml.add_bos_token") is None:
        more["add_bos_token"] = True
    try:
        tokenizer = made.from_pretrained(str(file.path.parent), gguf_file=file.path.name, local_files_only=True)
    except Exception as error:  # noqa: BLE001 - whatever the libraries raise at a vocabulary that makes no sense
        return f"its tokenizer cannot be built ({type(error).__name__}: {str(error)[:80]})"
    backend = tokenizer.backend_tokenizer
    if kind == "gpt2":
        _split(backend, pre)
    for name, value in more.items():
        setattr(tokenizer, name, value)
    tokenizer.save_pretrained(str(out))
    return ""


def _split(backend: Any, pre: str) -> None:
    """Make a byte-level tokenizer split text as its vocabulary was made for, where transformers does not."""
    from tokenizers import pre_tokenizers as split

    if pre in DIGITS:
        backend.pre_tokenizer = split.Sequence(
            [split.Digits(individual_digits=True), split.ByteLevel(add_prefix_space=False)]
        )
    if pre in LLAMA3 or pre == TEKKEN:
        backend.model.ignore_merges = True
