"""Measurement of the sample checkpoint as it is on disk: held-out loss, bits per byte, completions.

In: the checkpoint and the `Lib` directory it was trained from. Out: one JSON report. Invariant: every number comes from
files that training never read, and each stands beside its baseline: `xz -9` for bits per byte; real, shuffled and
random continuations for completions.

The rule that a completion must pass: the prompt is the head of a held-out file, cut after a whole statement. The model
adds `--tokens` tokens, and an unfinished last line is dropped. Prompt and completion must then go through Python's
`tokenize` with no exception, no error token and no bracket closed by another kind. One thing is forgiven: a statement
or string still open at the end is cut off, provided at least half of the completion's lines remain. An error anywhere
is never cut away, so a completion cannot pass by losing its bad part.
"""

from __future__ import annotations

import argparse
import ast
import functools
import hashlib
import io
import json
import lzma
import math
import platform
import random
import sysconfig
import tokenize
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
import transformers

from .corpus import Corpus, SourceFile, read_corpus

SAMPLE = Path(__file__).parent / "sample"
CONTEXT = 2048
STRIDE = 1024  # a token past the first window sees at least CONTEXT - STRIDE tokens
PROMPT_LINES = range(10, 101)
PROMPT_TOKENS = 1024
CLOSES = {")": "(", "]": "[", "}": "{"}


class Prompt(NamedTuple):
    """The first `lines` lines of a held-out file, and the text that really follows."""

    path: str
    lines: int
    text: str
    rest: str


class Lexed(NamedTuple):
    """How far `tokenize` read a text: the error, if any, and the last line that ended a statement."""

    error: str | None
    unfinished: bool
    complete_lines: int


class Verdict(NamedTuple):
    """The result of applying the module's rule to one completion."""

    passes: bool
    parses: bool
    reason: str
    kept_lines: int


Way = Callable[[int, Prompt], Sequence[int]]
"""A way to continue the prompt of an index: the tokens."""


def lex(text: str) -> Lexed:
    """Run `tokenize` over a text; error tokens and mismatched brackets are errors too."""
    complete = 0
    opened: list[str] = []
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.ERRORTOKEN:
                return Lexed("error token", False, complete)
            if token.type == tokenize.NEWLINE:
                complete = token.end[0]
            if token.type != tokenize.OP:
                continue
            if token.string in CLOSES.values():
                opened.append(token.string)
            elif token.string in CLOSES and (not opened or opened.pop() != CLOSES[token.string]):
                return Lexed("unmatched bracket", False, complete)
    except tokenize.TokenError as error:
        message = str(error.args[0])
        unfinished = "EOF" in message or "triple-quoted" in message
        return Lexed(message, unfinished, complete)
    except SyntaxError as error:  # IndentationError: a dedent to no outer level
        return Lexed(str(error.msg), False, complete)
    return Lexed(None, False, complete)


def grade(prompt: Prompt, completion: str) -> Verdict:
    """Apply the module's rule to one completion."""
    whole = completion[: completion.rfind("\n") + 1]
    kept, reason = whole.count("\n"), "whole"
    if not whole.strip():
        return Verdict(False, False, "no whole line", 0)
    text = prompt.text + whole
    lexed = lex(text)
    if lexed.error is not None:
        lines, kept, reason = kept, lexed.complete_lines - prompt.lines, "cut"
        if not lexed.unfinished or 2 * kept < lines:
            return Verdict(False, False, lexed.error, max(0, kept))
        text = "".join(text.splitlines(keepends=True)[: lexed.complete_lines])
        assert lex(text).error is None, prompt.path
    return Verdict(True, _parses(text), reason, kept)


def _parses(text: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes warn
            ast.parse(text)
    except (SyntaxError, ValueError):
        return False
    return True


def measure_loss(model: Any, tokenizer: Any, files: Sequence[SourceFile]) -> tuple[float, int]:
    """Score every token of every file, and the end-of-text token after it, in sliding windows.

    Returns the loss in nats, each file scored on its own, and the number of tokens with those of end of text.

    Raises:
        ValueError: decoding a file's tokens does not give its text back.
    """
    nats, tokens = 0.0, 0
    for file in files:
        end = tokenizer.eos_token_id
        ids = torch.tensor([end, *tokenizer(file.text, verbose=False)["input_ids"], end])
        if tokenizer.decode(ids[1:-1]) != file.text:
            raise ValueError(f"{file.path}: the tokenizer does not give the text back")
        for first, start, stop in _windows(len(ids) - 1):
            logits = model(ids[None, start:stop]).logits[0, first - start :]
            targets = ids[first + 1 : stop + 1]
            nats += float(F.cross_entropy(logits.double(), targets, reduction="sum"))
        tokens += len(ids) - 1
    return nats, tokens


def _windows(length: int) -> Iterator[tuple[int, int, int]]:
    """Yield input positions as (first scored, start, stop); every position is scored once."""
    yield 0, 0, min(CONTEXT, length)
    for first in range(CONTEXT, length, STRIDE):
        stop = min(first + STRIDE, length)
        yield first, stop - CONTEXT, stop


def measure_xz(corpus: Corpus) -> dict[str, float]:
    """Return `xz -9` bits per byte of the held-out files, measured three ways, from easy to hard to beat."""
    blobs = [file.text.encode() for file in corpus.heldout]
    heldout, training = b"".join(blobs), b"".join(file.text.encode() for file in corpus.train)
    sizes = {
        "each_file": sum(map(_xz, blobs)),
        "concatenated": _xz(heldout),
        "after_training_files": _xz(training + heldout) - _xz(training),
    }
    return {name: round(8 * size / len(heldout), 4) for name, size in sizes.items()}


def _xz(data: bytes) -> int:
    return len(lzma.compress(data, preset=9))


def draw_prompts(
    tokenizer: Any, files: Sequence[SourceFile], *, count: int, tokens: int, rng: random.Random
) -> list[Prompt]:
    """Draw `count` prompts, each from a different file as long as there are files left.

    More than 8 × `tokens` characters follow a prompt, which are taken to be at least `tokens` tokens.
    """
    choices = [prompts for file in files if (prompts := _prompts(tokenizer, file, tokens))]
    rng.shuffle(choices)
    return [rng.choice(choices[i % len(choices)]) for i in range(count)]


def _prompts(tokenizer: Any, file: SourceFile, tokens: int) -> list[Prompt]:
    lines = file.text.splitlines(keepends=True)
    prompts = []
    for count in PROMPT_LINES:
        text, rest = "".join(lines[:count]), "".join(lines[count:])
        lexed = lex(text)
        if lexed.error is not None or lexed.complete_lines != count:
            continue
        if len(tokenizer(text)["input_ids"]) < PROMPT_TOKENS and len(rest) > 8 * tokens:
            prompts.append(Prompt(file.path, count, text, rest))
    return prompts


def continuations(model: Any, tokenizer: Any, *, tokens: int, temperature: float, seed: int) -> dict[str, Way]:
    """Return the ways to continue a prompt: the sampled completion first, then greedy decoding and three controls."""
    end = tokenizer.eos_token_id

    def generate(prompt: Prompt, **how: Any) -> list[int]:
        ids = torch.tensor([[end, *tokenizer(prompt.text)["input_ids"]]])
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, **how)
        return [int(token) for token in out[0, ids.shape[1] :] if int(token) != end]

    @functools.cache  # the shuffled control starts from the same tokens
    def sampled(index: int, prompt: Prompt) -> list[int]:
        torch.manual_seed(seed + index)
        return generate(prompt, do_sample=True, temperature=temperature, top_k=0, top_p=1.0)

    def shuffled(index: int, prompt: Prompt) -> list[int]:
        ids = list(sampled(index, prompt))
        random.Random(seed + index).shuffle(ids)
        return ids

    def noise(index: int, _: Prompt) -> list[int]:
        rng = random.Random(seed + index)
        return [rng.randrange(end + 1, len(tokenizer)) for _ in range(tokens)]

    return {
        "sampled": sampled,
        "greedy": lambda _, prompt: generate(prompt, do_sample=False),
        "control_real_text": lambda _, prompt: tokenizer(prompt.rest, verbose=False)["input_ids"][:tokens],
        "control_shuffled_tokens": shuffled,
        "control_random_tokens": noise,
    }


def measure_completions(tokenizer: Any, prompts: Sequence[Prompt], way: Way) -> dict[str, object]:
    """Return the counts over all prompts, and the reasons of the failures."""
    verdicts = [grade(prompt, str(tokenizer.decode(list(way(at, prompt))))) for at, prompt in enumerate(prompts)]
    count, passes = len(verdicts), sum(verdict.passes for verdict in verdicts)
    return {
        "tokenize_passes": passes,
        "tokenize_rate": round(passes / count, 3),
        "ast_parses": sum(verdict.parses for verdict in verdicts),
        "passed_after_a_cut": sum(verdict.reason == "cut" for verdict in verdicts),
        "kept_lines_mean": round(sum(verdict.kept_lines for verdict in verdicts) / count, 1),
        "failures": dict(sorted(Counter(verdict.reason for verdict in verdicts if not verdict.passes).items())),
    }


@torch.no_grad()
def evaluate(checkpoint: Path, lib: Path, options: argparse.Namespace) -> dict[str, object]:
    """Return the whole report as JSON values.

    Raises:
        SystemExit: `lib` is not the library that the sample was trained from.
    """
    corpus = read_corpus(lib)
    trained_on = json.loads((checkpoint / "training.json").read_text(encoding="utf-8"))["corpus"]["digest"]
    if trained_on != corpus.digest:
        raise SystemExit(
            f"{lib}: not the library the sample was trained from (digest {corpus.digest}, not {trained_on})"
        )
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    nats, tokens = measure_loss(model, tokenizer, corpus.heldout)
    size = sum(len(file.text.encode()) for file in corpus.heldout)
    rng = random.Random(options.seed)
    prompts = draw_prompts(tokenizer, corpus.heldout, count=options.prompts, tokens=options.tokens, rng=rng)
    how = {"tokens": options.tokens, "temperature": options.temperature, "seed": options.seed}
    ways = continuations(model, tokenizer, **how)
    return {
        "checkpoint_sha256": hashlib.sha256((checkpoint / "model.safetensors").read_bytes()).hexdigest(),
        "corpus_digest": corpus.digest,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "heldout": {
            "files": len(corpus.heldout),
            "bytes": size,
            "tokens": tokens,
            "nats_per_token": round(nats / tokens, 4),
            "perplexity": round(math.exp(nats / tokens), 3),
            "bits_per_byte": round(nats / math.log(2) / size, 4),
            "xz_9_bits_per_byte": measure_xz(corpus),
        },
        "completions": {
            "prompts": len(prompts),
            "files": len({prompt.path for prompt in prompts}),
            **how,
            **{name: measure_completions(tokenizer, prompts, way) for name, way in ways.items()},
        },
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Measure a sample checkpoint and print the report as JSON."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--checkpoint", type=Path, default=SAMPLE)
    parser.add_argument("--lib", type=Path, default=Path(sysconfig.get_path("stdlib")))
    parser.add_argument("--prompts", type=int, default=50)
    parser.add_argument("--tokens", type=int, default=160)
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="also write the report to this file")
    options = parser.parse_args(argv)
    report = json.dumps(evaluate(options.checkpoint, options.lib, options), indent=2) + "\n"
    print(report, end="")
    if options.out is not None:
        options.out.write_text(report, encoding="utf-8")


if __name__ == "__main__":
    main()
