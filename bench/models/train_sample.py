"""Training of the sample checkpoint from a Python library's own source.

In: a `Lib` directory and a budget in minutes or steps. Out: a directory in Hugging Face form (bf16 Qwen3 weights,
byte-level BPE tokenizer) and `training.json`, the run's log. Invariant: the held-out files are never read for training,
for choosing a checkpoint or for the tokenizer; validation files choose the checkpoint. Exported weights give the same
logits as the model trained here, or the export fails.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import tokenizers
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

from .corpus import Corpus, SourceFile, read_corpus

END_OF_TEXT = "<|endoftext|>"
END_OF_TEXT_ID = 0
# Qwen's own pre-tokenizer, so that a tokenizer rebuilt for the model type agrees with ours.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
EXPORT_TOLERANCE = 2e-3  # largest fp32 logit difference between the trained model and what is read back


@dataclass(frozen=True)
class Shape:
    """The model's shape, in the field names of `Qwen3Config`."""

    vocab_size: int = 4096
    hidden_size: int = 256
    intermediate_size: int = 768
    num_hidden_layers: int = 6
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 64
    max_position_embeddings: int = 2048
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0


@dataclass(frozen=True)
class Recipe:
    """The settings of a training run: a budget in minutes or in steps, and the optimiser's settings."""

    minutes: float | None
    steps: int | None
    batch: int
    context: int
    learning_rate: float
    weight_decay: float
    dropout: float
    seed: int
    warmup: float = 0.02  # share of the budget
    evaluations: int = 25

    def progress(self, step: int, elapsed_s: float) -> float:
        """Return the share of the budget used; 1 or more when training is over."""
        if self.steps is not None:
            return step / self.steps
        assert self.minutes is not None
        return elapsed_s / (60 * self.minutes)

    def rate(self, progress: float) -> float:
        """Return the learning rate: linear warm-up, then a cosine to zero."""
        if progress < self.warmup:
            return self.learning_rate * (progress + 1e-3) / (self.warmup + 1e-3)
        done = min(1.0, (progress - self.warmup) / (1 - self.warmup))
        return self.learning_rate * 0.5 * (1 + math.cos(math.pi * done))


@dataclass(frozen=True)
class LogEntry:
    """The state of training at one evaluation; losses in nats per token."""

    step: int
    elapsed_s: float
    train_loss: float
    validation_loss: float


def fresh_model(shape: Shape, dropout: float) -> Any:
    """Build transformers' own Qwen3 decoder with fresh float32 weights.

    Dropout acts on the embeddings and on what each block adds to the residual.
    """
    settings, made = asdict(shape), cast(Any, transformers.Qwen3Config)
    config = made(
        rope_parameters={"rope_type": "default", "rope_theta": settings.pop("rope_theta")},
        **settings,
        tie_word_embeddings=True,
        attention_bias=False,
        **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), END_OF_TEXT_ID),
    )
    model: Any = transformers.Qwen3ForCausalLM(config)

    def dropped(module: nn.Module, _: object, made: Any) -> Any:
        first = F.dropout(made[0] if isinstance(made, tuple) else made, dropout, module.training)
        return (first, *made[1:]) if isinstance(made, tuple) else first

    model.model.embed_tokens.register_forward_hook(dropped)
    for layer in model.model.layers:
        layer.self_attn.register_forward_hook(dropped)
        layer.mlp.register_forward_hook(dropped)
    depth = (2 * shape.num_hidden_layers) ** -0.5
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2:
            into_residual = name.endswith(("o_proj.weight", "down_proj.weight"))
            nn.init.normal_(parameter, std=0.03 * (depth if into_residual else 1.0))
    return model


def loss_of(model: Any, windows: Tensor) -> Tensor:
    """Return the mean loss in nats per predicted token of token ids [batch, context + 1]."""
    logits = model(windows[:, :-1], use_cache=False).logits
    return F.cross_entropy(logits.float().flatten(0, 1), windows[:, 1:].flatten())


def train_tokenizer(files: Sequence[SourceFile], vocab_size: int) -> tokenizers.Tokenizer:
    """Train a byte-level BPE tokenizer on the training files; id 0 is the end-of-text token."""
    tokenizer, before = tokenizers.Tokenizer(tokenizers.models.BPE()), tokenizers.pre_tokenizers
    split = before.Split(tokenizers.Regex(SPLIT), "isolated")
    tokenizer.pre_tokenizer = before.Sequence([split, before.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=before.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((file.text for file in files), trainer)
    assert tokenizer.token_to_id(END_OF_TEXT) == END_OF_TEXT_ID
    return tokenizer


def encode(tokenizer: tokenizers.Tokenizer, files: Sequence[SourceFile]) -> Tensor:
    """Encode all files as one stream of token ids, with an end-of-text token before each file and after the last."""
    stream = [END_OF_TEXT_ID]
    for encoding in tokenizer.encode_batch([file.text for file in files]):
        stream.extend(encoding.ids)
        stream.append(END_OF_TEXT_ID)
    return torch.tensor(stream, dtype=torch.int64)


def optimiser(model: Any, recipe: Recipe) -> torch.optim.AdamW:
    """Return an AdamW optimiser that decays matrices and leaves norm weights alone."""
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.ndim == 2], "weight_decay": recipe.weight_decay},
        {"params": [p for p in parameters if p.ndim != 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=recipe.learning_rate, betas=(0.9, 0.95), fused=parameters[0].is_cuda)


def windows(stream: Tensor, starts: Tensor, context: int) -> Tensor:
    """Return ids [batch, context + 1] cut from `stream`, one row for each start."""
    return stream[starts[:, None] + torch.arange(context + 1, device=stream.device)]


@torch.no_grad()
def validate(model: Any, stream: Tensor, context: int) -> float:
    """Return the mean loss in nats per token over back-to-back windows of the stream."""
    model.eval()
    starts = torch.arange(0, len(stream) - context - 1, context, device=stream.device)
    losses = []
    for some in torch.split(starts, 16):
        with torch.autocast(stream.device.type, torch.bfloat16):
            losses.append(loss_of(model, windows(stream, some, context)) * len(some))
    model.train()
    return float(torch.stack(losses).sum()) / len(starts)


def train(model: Any, recipe: Recipe, training: Tensor, validation: Tensor) -> tuple[dict[str, Tensor], list[LogEntry]]:
    """Train the model in place; return the weights with the lowest validation loss, and the log."""
    device, adam = training.device, optimiser(model, recipe)
    generator = torch.Generator(device).manual_seed(recipe.seed)
    step_loss = torch.compile(loss_of) if device.type == "cuda" else loss_of
    best, log, started = dict[str, Tensor](), list[LogEntry](), time.monotonic()
    step, progress, next_evaluation = 0, 0.0, 1 / recipe.evaluations
    while progress < 1:
        for group in adam.param_groups:
            group["lr"] = recipe.rate(progress)
        high = len(training) - recipe.context - 1
        starts = torch.randint(high, (recipe.batch,), generator=generator, device=device)
        with torch.autocast(device.type, torch.bfloat16):
            loss = step_loss(model, windows(training, starts, recipe.context))
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adam.step()
        adam.zero_grad(set_to_none=True)
        step += 1
        if step % 10 == 0 and device.type == "cuda":
            torch.cuda.synchronize()  # the clock below reads finished work only
        progress = recipe.progress(step, time.monotonic() - started)
        if progress >= min(1.0, next_evaluation):
            next_evaluation += 1 / recipe.evaluations
            value = validate(model, validation, recipe.context)
            if not log or value < min(entry.validation_loss for entry in log):
                best = {k: v.detach().cpu().clone() for k, v in model.state_dict().items()}
            log.append(LogEntry(step, time.monotonic() - started, float(loss.detach()), value))
            print(json.dumps(asdict(log[-1])), flush=True)
    return best, log


def export(model: Any, weights: dict[str, Tensor], tokenizer: tokenizers.Tokenizer, out: Path) -> None:
    """Write the bf16 checkpoint and the tokenizer.

    Raises:
        RuntimeError: the model read back differs in its logits by more than `EXPORT_TOLERANCE`.
    """
    model.load_state_dict(weights)
    model.to("cpu", torch.bfloat16).eval().save_pretrained(out)
    (out / "model.safetensors").chmod(0o644)
    tokenizer.save(str(out / "tokenizer.json"))
    tokens = dict.fromkeys(("bos_token", "eos_token", "pad_token"), END_OF_TEXT)
    length, kind = model.config.max_position_embeddings, "PreTrainedTokenizerFast"
    told = {"tokenizer_class": kind, **tokens, "model_max_length": length, "clean_up_tokenization_spaces": False}
    _write_json(told, out / "tokenizer_config.json")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
    probe = torch.tensor([tokenizer.encode("import os\n\n\ndef main():\n    return 0\n").ids])
    with torch.no_grad():
        difference = float((model.float()(probe).logits - theirs(probe).logits).abs().max())
    if difference > EXPORT_TOLERANCE:
        raise RuntimeError(f"{out}: logits differ by {difference} from those of the model trained here")


def describe(corpus: Corpus) -> dict[str, object]:
    """Return the corpus in numbers, for the log."""
    parts = dict(zip(corpus._fields, corpus[:3], strict=False))
    return {
        "digest": corpus.digest,
        "dropped_duplicates": len(corpus.dropped_duplicates),
        "files": {name: len(part) for name, part in parts.items()},
        "bytes": {name: sum(len(f.text.encode()) for f in part) for name, part in parts.items()},
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Train the sample checkpoint and write it to a directory."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--lib", required=True, type=Path, help="a Python library's Lib directory")
    parser.add_argument("--out", required=True, type=Path)
    budget = parser.add_mutually_exclusive_group(required=True)
    budget.add_argument("--minutes", type=float)
    budget.add_argument("--steps", type=int)
    parser.add_argument("--batch", type=int, default=32, help="windows a step")
    parser.add_argument("--context", type=int, default=2048, help="tokens a window")
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--weight-decay", type=float, default=0.5)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0)
    arguments = vars(parser.parse_args(argv))
    lib, out = arguments.pop("lib"), arguments.pop("out")
    recipe, shape = Recipe(**arguments), Shape()

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(recipe.seed)
    torch.set_float32_matmul_precision("high")
    out.mkdir(parents=True, exist_ok=True)
    corpus = read_corpus(lib)
    tokenizer = train_tokenizer(corpus.train, shape.vocab_size)
    training = encode(tokenizer, corpus.train).to(device)
    validation = encode(tokenizer, corpus.validation).to(device)
    model = fresh_model(shape, recipe.dropout).to(device)
    weights, log = train(model, recipe, training, validation)
    export(model, weights, tokenizer, out)
    tokens = log[-1].step * recipe.batch * recipe.context
    report = {
        "corpus": describe(corpus),
        "shape": asdict(shape),
        "recipe": asdict(recipe),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "train_tokens": len(training),
        "seen_tokens": tokens,
        "epochs": round(tokens / len(training), 1),
        "steps": log[-1].step,
        "wall_s": round(log[-1].elapsed_s, 1),
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "CPU",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "tokenizers": tokenizers.__version__,
        "best": asdict(min(log, key=lambda entry: entry.validation_loss)),
        "log": [asdict(entry) for entry in log],
    }
    _write_json(report, out / "training.json")


def _write_json(value: object, path: Path) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
