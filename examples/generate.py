"""Generate with a compiled model: a completion, its log-probabilities, a stream, a conversation.

python examples/generate.py                        # compiles the sample checkpoint the first time: minutes
python examples/generate.py model.lock.toml        # loads a lock in seconds; --model where its checkpoint moved
"""

from __future__ import annotations

import argparse
import sys

import agentcompile

PROMPT = "def main():"


def main() -> None:
    """Print what each way of generating gives."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lock", nargs="?", default="preset:sample", help="a lock, a checkpoint or preset:NAME")
    parser.add_argument("--model", default="", help="the lock's checkpoint, where the lock does not find it")
    asked = parser.parse_args()
    with agentcompile.load(asked.lock, model=asked.model) as model:
        show(model)


def show(model: agentcompile.CompiledModel) -> None:
    """Generate in each way with a loaded model."""
    made = model.generate(PROMPT, max_new_tokens=16, logprobs=True)
    print(f"completion: {made.text!r}, ended by {made.finish}, {made.tokens_per_s:.0f} tokens/s")
    print(f"log-probability of the first token: {made.logprobs[0]:.3f}")

    print("stream: ", end="")
    for piece in model.stream(PROMPT, max_new_tokens=16, temperature=0.8, top_k=40, seed=1):
        print(piece.text, end="", flush=True)
    print()

    both = model.generate(["import", "class Stack:"], max_new_tokens=4)
    print(f"two prompts: {[one.text for one in both]}")

    try:
        answer = model.chat([{"role": "user", "content": "Write a function that adds."}], max_new_tokens=16)
        print(f"chat: {answer.text!r}")
    except agentcompile.AgentCompileError as error:  # a base model has no chat template
        print(f"chat: {error.message}")


if __name__ == "__main__":
    try:
        main()
    except agentcompile.AgentCompileError as error:
        sys.exit(f"{error.message}\n{error.hint}")
