"""Hostile, broken and absent advisers over a real loopback server: they may order candidates and change nothing else.

An attempt asks one adviser about the real spaces of a tiny model through the program's own client, and compares the
advice with the spaces: the same candidates, no value outside a domain, no control characters, no exception, an end in
time. A few attempts are whole processes of `agentcompile advise`, which must end with exit code 0.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from agentcompile import catalog
from agentcompile.advice.client import Client
from agentcompile.advice.counsel import Counsel, prompts_of
from agentcompile.advice.heuristic import Heuristic
from agentcompile.advice.ledger import Ceilings, Ledger
from agentcompile.advice.prompt import Prompt
from agentcompile.advice.wire import OpenAIWire
from agentcompile.capture import capture
from agentcompile.evaluation.machine import this_machine
from agentcompile.ir.advice import Advice, Question, Usage
from agentcompile.ir.cleaning import clean
from agentcompile.ir.codec import encode
from agentcompile.ir.region import Regime
from agentcompile.ir.scope import region_dtype
from agentcompile.ir.target import Ceiling
from agentcompile.ops.layouts import LAYOUTS
from agentcompile.options import resolve
from agentcompile.regions.kinds import facts
from agentcompile.regions.partition import partition
from agentcompile.space import Space
from agentcompile.tuning.partitions import question_of

from ..models.presets import materialise
from .hostile import PLAYS, Maker, Play
from .report import Campaign, Figures, Report, Say, fresh_environment

DEFAULT = 2000
CONTEXT = 48
PATIENCE_S = 1.5
"""The time limit of an adviser in seconds, for all its requests together."""
_GRACE_S = 10.0
_WHOLE = 200
"""The number of attempts of which one is a whole process."""
_CEILING = Ceiling(dram_bytes_per_s=20e9, cache_bytes_per_s=60e9, flops_per_s=2e11)
_PATIENT_S = 120.0


def run(campaign: Campaign, say: Say) -> Report:
    """Make `campaign.count` attempts with misbehaving advisers, one kind after another."""
    failures, seen, taken, tried = list[str](), Counter[str](), 0, 0
    with tempfile.TemporaryDirectory() as folder:
        model = materialise("tiny-qwen3", Path(folder) / "model", dtype="fp32")
        questions = _questions(model)
        prompts = prompts_of([question for question, _ in questions.values()], ())[:3]
        while tried < campaign.count and not campaign.over:
            name = list(PLAYS)[tried % len(PLAYS)]
            rng = random.Random(f"{campaign.seed}/{tried}")
            with _serving(PLAYS[name], rng) as url:
                if tried % _WHOLE == _WHOLE - 1:
                    why, used = _process(model, url, Path(folder) / "home"), 0
                else:
                    why, used = _attempt(questions, prompts, url)
            failures += [f"attempt {tried} ({name}): {one}" for one in why]
            seen[name] += 1
            taken += used
            tried += 1
            if tried % 200 == 0:
                say(f"{tried} advisers, {len(failures)} failures")
    figures: Figures = {
        "regions asked about": len(questions),
        "candidates": sum(len(question.candidates) for question, _ in questions.values()),
        "answers taken in part or whole": taken,
        "whole processes": tried // _WHOLE,
    }
    rows = tuple(Figures(adviser=name, attempts=count) for name, count in seen.items())
    return Report(kind="advice", tried=tried, failures=tuple(failures), figures=figures, details=rows)


def _questions(model: Path) -> dict[str, tuple[Question, Advice]]:
    """Return the questions of a decode step by region id, each with the heuristic's advice, which needs no request."""
    target = this_machine(resolve({}).options).target
    known = catalog.load([catalog.default_root()], kinds=facts(), layouts=LAYOUTS)
    graph = capture(model, context=CONTEXT).decode
    found: dict[str, tuple[Question, Advice]] = {}
    for region in partition(graph, Regime(phase="decode", context=(1, CONTEXT))).regions:
        space = Space(region, known.serving(region.kind, region_dtype(region)), target)
        if len(space) > 1:
            question = question_of(space, _CEILING, "cache")
            found[region.id] = (question, Heuristic().advise(question))
    return found


def _attempt(
    questions: Mapping[str, tuple[Question, Advice]], prompts: Sequence[Prompt], url: str
) -> tuple[list[str], int]:
    """Ask one adviser; return what is wrong with the advice, and for how many regions its answers were used."""
    wire = OpenAIWire("loop", url, "")
    ledger = Ledger(Ceilings(calls=64, tokens=10**8, seconds=PATIENCE_S), Usage())
    client = Client(wire, "loop", ledger, sleep=lambda _: None)
    wrong, begin = list[str](), time.monotonic()
    try:
        with Counsel(questions, asks=client) as counsel:
            counsel.begin(prompts)
            counsel.wait(PATIENCE_S + _GRACE_S)
            if counsel.waiting:
                wrong.append(f"{counsel.waiting} requests did not end within {PATIENCE_S + _GRACE_S:g} s")
            advice = {region: counsel.advice(region) for region in questions}
    except Exception as error:  # noqa: BLE001 - whatever is raised is a finding
        return [f"raised {type(error).__name__}: {error}"], 0
    finally:
        wire.close()
    for region, (question, before) in questions.items():
        if advice[region] is before:
            continue
        wrong += [f"{question.region.name}: {why}" for why in _faults(question, advice[region])]
        if not advice[region].proposals:
            wrong.append(f"{question.region.name}: advice that says nothing of what was taken")
    if time.monotonic() - begin > PATIENCE_S + _GRACE_S:
        wrong.append(f"took {time.monotonic() - begin:.1f} s")
    return wrong, sum(advice[region] is not before for region, (_, before) in questions.items())


def _faults(question: Question, advice: Advice) -> Iterator[str]:
    """Yield each way in which the advice does more than order the given candidates."""
    ids = [candidate.id for candidate in question.candidates]
    if sorted(candidate.id for candidate in advice.sorted(question.candidates)) != sorted(ids):
        yield "the candidates are not those of the space"
    if not set(advice.order) <= set(ids):
        yield "the order names candidates that do not exist"
    domains = {(t.id, param.name): param.domain for t in question.templates for param in t.params}
    for hint in advice.hints:
        if not set(hint.values) <= set(domains.get((hint.template, hint.param), ())):
            yield f"a hint of values outside the domain of {hint.template} {hint.param}"
    for text in _texts(encode(advice)):
        if clean(text, len(text) + 1) != text:
            yield f"text that is not clean: {text[:40]!r}"


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (dict, list)):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _texts(one)


def _process(model: Path, url: str, home: Path) -> list[str]:
    """Run a whole `agentcompile advise`; return what is wrong with how it ended."""
    flags = ["--context", str(CONTEXT), "--advisor", f"openai:loop@{url}", "--advisor-seconds", "3", "--json"]
    command = [sys.executable, "-m", "agentcompile", "advise", str(model), *flags]
    try:
        done = subprocess.run(
            command, env=fresh_environment(home), capture_output=True, text=True, timeout=_PATIENT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return [f"`advise` did not end within {_PATIENT_S:g} s"]
    if done.returncode or "Traceback" in done.stderr:
        return [f"`advise` ended with exit code {done.returncode}: {done.stderr[-300:]}"]
    return []


@contextmanager
def _serving(make: Maker, rng: random.Random) -> Iterator[str]:
    """Serve answers made by `make` on the loopback interface until the block ends; yield the server's URL."""
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            """Log nothing."""

        def do_GET(self) -> None:
            self._answer([])

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["content-length"])))
            self._answer(json.loads(request["messages"][1]["content"])["regions"])

        def _answer(self, asked: Sequence[dict[str, Any]]) -> None:
            with lock:
                play = make(list(asked), rng)
            with suppress(OSError):
                _send(self, play)
            self.close_connection = True

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads, http.block_on_close = True, False
    threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{http.server_port}/v1"
    finally:
        http.shutdown()
        http.server_close()


def _send(handler: BaseHTTPRequestHandler, play: Play) -> None:
    if play.hang_up:
        return
    handler.send_response(play.status)
    for name, value in (("content-type", "application/json"), *play.headers):
        handler.send_header(name, value)
    if not play.endless:
        handler.send_header("content-length", str(len(play.body) if play.announced is None else play.announced))
    handler.end_headers()
    handler.wfile.write(play.body)
    end = time.monotonic() + PATIENCE_S + _GRACE_S
    while play.endless and time.monotonic() < end:
        time.sleep(play.pause_s)
        handler.wfile.write(play.body)
        handler.wfile.flush()
