"""Writes the sample checkpoint as a GGUF file: `stand_in.py FILE`. A page's commands then need no download,
but for those that read a text: the file has no tokenizer."""

from __future__ import annotations

import sys
from pathlib import Path

from agentcompile.bench.models.gguf_file import write_gguf
from agentcompile.bench.models.locate import SAMPLE

if __name__ == "__main__":
    write_gguf(SAMPLE, Path(sys.argv[1]))
