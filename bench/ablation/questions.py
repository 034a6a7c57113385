"""What an adviser is asked about a recorded space of ours, kept beside the space: NAME.json.gz, NAME.question.json.gz.

The question holds region, target, ceilings and the templates as they were, so that the same candidates, prompts and
recorded answers are found whatever becomes of the templates.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from agentcompile.errors import AgentCompileError
from agentcompile.ir.advice import Question
from agentcompile.ir.codec import CodecError, decode, encode
from agentcompile.ir.digest import canonical
from agentcompile.ir.region import Region
from agentcompile.ir.target import Ceiling, Residency, Target
from agentcompile.ir.template import Template
from agentcompile.space import Space
from agentcompile.system.plain_files import NotPlainError, read_plain

from .documents import Fault, unpacked

ENDING = ".question.json.gz"
MOST_BYTES = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedQuestion:
    """The content of a question's file."""

    kind: Literal["space-question"] = "space-question"
    format: Literal[1] = 1
    model: str
    """The checkpoint that the region is of, and its context."""
    region: Region
    target: Target
    ceiling: Ceiling
    residency: Residency
    templates: tuple[Template, ...]

    @property
    def question(self) -> Question:
        """The question about the whole space, with nothing tried."""
        space = Space(self.region, self.templates, self.target)
        return Question(
            region=self.region,
            target=self.target,
            ceiling=self.ceiling,
            residency=self.residency,
            templates=space.templates,
            candidates=tuple(space),
        )


def beside(space: Path) -> Path:
    """Return the path of the question about the space at `space`."""
    return space.with_name(space.name.removesuffix(".gz").removesuffix(".json") + ENDING)


def question_bytes(question: RecordedQuestion) -> bytes:
    """Return a question's file: the same bytes for the same question."""
    return gzip.compress(canonical(encode(question)), mtime=0)


def read_question(path: Path) -> RecordedQuestion:
    """Read a question's file.

    Raises:
        AgentCompileError: it cannot be read, is too large, or is no question (usage).
    """
    hint = "record the space again with `agentcompile bench spaces`, or copy the file again"
    try:
        data = unpacked(read_plain(path, MOST_BYTES), MOST_BYTES)
        found: RecordedQuestion = decode(RecordedQuestion, json.loads(data), "question")
    except NotPlainError as error:
        raise AgentCompileError(f"{path}: {error}", hint=hint) from error
    except (OSError, Fault, ValueError, CodecError, RecursionError) as error:
        raise AgentCompileError(f"{path}: no question about a recorded space: {error}", hint=hint) from error
    return found
