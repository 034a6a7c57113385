"""Parts of the flow that end before any candidate is built: regions, their spaces, and the advice about them."""

from __future__ import annotations

from agentcompile.advice.configure import Inquiry, check, counsel_of, is_remote
from agentcompile.advice.counsel import prompts_of
from agentcompile.advice.prompt import Prompt, prompt_of
from agentcompile.capture.cached import load_model
from agentcompile.errors import AgentCompileError
from agentcompile.evaluation.machine import ceilings, evaluator_of, this_machine
from agentcompile.events import Emit, silent
from agentcompile.ir.advice import Usage
from agentcompile.ir.region import Region
from agentcompile.options import Options
from agentcompile.runs.checkpoints import checkpoint_of
from agentcompile.runs.stages import shared
from agentcompile.tuning.partitions import bound, cut
from agentcompile.tuning.prepared import hot, informed, prepare, questions, started, templates_for
from agentcompile.tuning.trial_database import TrialDatabase


def advise_model(options: Options, emit: Emit, asked: Inquiry) -> tuple[Prompt, ...]:
    """Prepare a model, ask the adviser about its regions, or those named `asked.region`, and return the prompts.

    Answers come as events. With `asked.show_prompt` nothing is sent.

    Raises:
        AgentCompileError: no region has that name (usage).
    """
    if not asked.show_prompt:
        check(options)
    here, emit = this_machine(options), shared(emit)[0]
    emit(started(options, here))
    with evaluator_of(here, options.seed) as evaluator:
        prepared = prepare(options, here, evaluator, emit)
    first = questions(prepared)
    past = TrialDatabase(asked.history, None, "")
    called = [question for question, _ in first.values() if _is_called(question.region, asked.region)]
    wanted = [informed(question, past, here.store) for question in called]
    if not wanted:
        known = ", ".join(question.region.name for question, _ in first.values())
        raise AgentCompileError(f"--region {asked.region}: no region is called that", hint=f"regions: {known}")
    if asked.region:
        prompts = tuple(prompt_of([question]) for question in wanted)
    else:
        prompts = prompts_of(wanted, hot(prepared))
    if not asked.show_prompt and is_remote(options):
        record, who = asked.record, asked.answered_by
        with counsel_of(options, first, emit, Usage(), record=record, recalls=False, answered_by=who) as found:
            found.begin(prompts)
            found.wait(options.advisor_seconds)
    return prompts


def _is_called(region: Region, name: str) -> bool:
    return not name or name in (region.name, region.kind) or region.id.startswith(name)


def inspect_model(options: Options, emit: Emit = silent) -> None:
    """Capture a model, cut it into regions and bound their spaces, which come as events; only ceilings are measured."""
    here = this_machine(options)
    emit(started(options, here))
    templates = templates_for(options, emit)
    checkpoint = checkpoint_of(options.model, options.cache, emit)
    with evaluator_of(here, options.seed) as evaluator:
        model = load_model(checkpoint, options.context, here.store, here.hashes)
        decode, _ = cut(model.captured, here.target, ceilings(here, evaluator), emit, options.batch)
        bound(decode, templates, here.target, emit)
