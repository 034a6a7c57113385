"""One region of a prompt: a question, and the short ids by which prompt and answer name its templates and candidates.

In: a question. Out: a `PromptRegion`, whose `key` is the identity of what the ids mean, however a prompt words the
question.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace

from agentcompile.ir.advice import Question
from agentcompile.ir.digest import Json, digest
from agentcompile.ir.template import Candidate, Params, Template

LISTED = 128
"""Most candidates of a region that are listed with an id, evenly spaced where there are more; the others are named by
their values."""
_DRAWN = 8
"""One candidate that is drawn is listed without an id for so many that have one."""
_IDS = "advise/1"
"""Version of the rule that gives out ids, named after the prompt that introduced it; recorded answers belong to it.

It is raised when `c12` or `t2` comes to mean something else. A prompt with other words or more facts leaves it alone,
so that answers to earlier prompts stay usable.
"""


@dataclass(frozen=True, kw_only=True)
class PromptRegion:
    """One region of a prompt: the question, and the meaning of the ids in it."""

    id: str
    """`r` and the start of the region's own id: the same in every prompt that asks about it."""
    question: Question
    templates: Mapping[str, Template]
    """Templates by `t1`, `t2`, … in the order of the space."""
    candidates: Mapping[str, Candidate]
    """Candidates by `c1`, `c2`, … in the order of the space."""

    @functools.cached_property
    def key(self) -> str:
        """The identity of what the ids mean, under which an answer is recorded.

        Other words or facts in the prompt, other rates of the machine or an edited kernel of a template change the text
        but leave the answer applicable.
        """
        listed: list[Json] = [[id, candidate.label] for id, candidate in self.candidates.items()]
        about: list[Json] = [["focus", *self.question.focus]] if self.question.focus else []
        about += [["round", self.question.round]] if self.question.round else []
        return digest("question/1", _IDS, self.question.region.id, self.question.residency, listed, *about)

    @functools.cached_property
    def shown(self) -> Mapping[str, Candidate]:
        """The candidates of the text by name: those with an id, and where they are a sample some others too.

        Ids are given to every so many candidates in the order of the space, so that two parameters may go together in
        all of them. The others are the defaults of each template, and some that are drawn, the same at every call.
        """
        every = self.question.candidates
        if len(self.candidates) == len(every):
            return self.candidates
        defaults = [self.points.get((one.id, one.defaults)) for one in self.templates.values()]
        drawn = random.Random(len(every)).sample(range(len(every)), len(self.candidates) // _DRAWN)
        more = [*(one for one in defaults if one is not None), *(every[at] for at in sorted(drawn))]
        return {**self.candidates, **{name: one for one in more if (name := self.name(one)) not in self.candidates}}

    def sampled(self, most: int) -> PromptRegion:
        """Return this with at most `most` of the listed candidates, evenly spaced, each with the id that it has here.

        It is for a shorter text. An answer to that is read, and recorded, with the whole list.
        """
        if len(self.candidates) <= most:
            return self
        step = math.ceil(len(self.candidates) / most)
        return replace(self, candidates=dict(list(self.candidates.items())[::step]))

    @functools.cached_property
    def names(self) -> Mapping[str, str]:
        """The ids of the listed candidates in the prompt, by their own."""
        return {candidate.id: name for name, candidate in self.candidates.items()}

    def name(self, candidate: Candidate) -> str:
        """Return the name of a candidate in the prompt: its id where it is listed, else as in ``t3(16,4,2,1)``."""
        return self.names.get(candidate.id) or self._values(candidate)

    def template(self, candidate: Candidate) -> str:
        """Return the id of a candidate's template in the prompt."""
        return self._template_names[candidate.template]

    def named(self, name: str) -> Candidate | None:
        """Return the candidate of the space with this id, or with these values of a template; None if there is none."""
        return self.candidates.get(name) or self._by_values.get(name.replace(" ", ""))

    @functools.cached_property
    def _by_values(self) -> Mapping[str, Candidate]:
        return {self._values(candidate): candidate for candidate in self.question.candidates}

    def _values(self, candidate: Candidate) -> str:
        values = (str(value).replace(" ", "") for _, value in candidate.params)
        return f"{self.template(candidate)}({','.join(values)})"

    @functools.cached_property
    def _template_names(self) -> Mapping[str, str]:
        return {template.id: name for name, template in self.templates.items()}

    @functools.cached_property
    def points(self) -> Mapping[tuple[str, Params], Candidate]:
        """Every candidate of the space, listed or not, by the id of its template and its parameters."""
        return {(candidate.template, candidate.params): candidate for candidate in self.question.candidates}


def asked_about(question: Question) -> PromptRegion:
    """Return `question` with ids for its region, its templates and the listed candidates."""
    every = tuple(question.candidates)
    step = max(math.ceil(len(every) / LISTED), 1)
    return PromptRegion(
        id=f"r{question.region.id[:8]}",
        question=question,
        templates={f"t{at}": template for at, template in enumerate(question.templates, 1)},
        candidates={f"c{at}": candidate for at, candidate in enumerate(every[::step], 1)},
    )
