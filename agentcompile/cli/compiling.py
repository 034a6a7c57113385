"""The verbs `compile` and `inspect`: from a checkpoint to its regions, and on to a lock."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from shlex import quote

from agentcompile.cli.exits import recorded
from agentcompile.cli.flow import REAL, Flow
from agentcompile.cli.render import Reporter, Screen, tee
from agentcompile.cli.reviewing import goes_on, to_decide, undecided
from agentcompile.control.desk import steered
from agentcompile.control.review import open_items
from agentcompile.control.steering import Steering
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.events import Emit, Event, GraphCaptured
from agentcompile.ir.codec import encode
from agentcompile.ir.trial import Kernel
from agentcompile.lockfile.bundle import beside
from agentcompile.options import Options, advisor_secret, resolve
from agentcompile.runs import progress, session, tables
from agentcompile.runs.folders import resuming
from agentcompile.runs.resumed import resumed_options, run_to_resume
from agentcompile.runs.stages import shared
from agentcompile.runs.status import nothing_done
from agentcompile.search import strategy_of


def compile(
    flags: Mapping[str, object], *, resume: bool, screen: Screen, flow: Flow = REAL, bundle: bool = False
) -> int:
    """Compile a checkpoint to a lock inside a run directory, new or resumed; with `bundle` write the lock's bundle too.

    Raises:
        AgentCompileError: an error that the user can fix; the lock waits for a person (undecided, exit 7).
    """
    options = resolve(flags).options
    strategy_of(options.strategy)  # what is refused here leaves no run behind
    if not resume:
        _needs_model(options)
        flow.check(options)
    run = run_to_resume(options, flags, _spelled) if resume else _new(options)
    if resume:
        options = resumed_options(run, options, flags, _spelled)
    try:
        return _run(flow, run, options, screen, bundle=bundle)
    except AgentCompileError as error:
        state = run.state()
        if not (nothing_done(state, error) and run.discard()):
            if not state.graphs:
                screen.say(_where(run))
            error.facts = {"run": str(run.path), **error.facts}
        raise


def _run(flow: Flow, run: session.RunDirectory, options: Options, screen: Screen, *, bundle: bool) -> int:
    """Compile inside a run directory, and show what came of it."""  # noqa: DOC501
    with session.Journal(run) as journal, Reporter(screen, run.state()) as reporter:
        begun = reporter.state
        review = options.review or begun.review is not None  # a review once asked for stays
        if review and begun.settled and not begun.asked and open_items(begun):
            raise undecided(begun, run.path)
        emit, mutex = shared(tee(journal.append, _naming(run, screen), reporter))
        with (
            recorded(journal, emit, resuming(run.path), _secrets(options)),
            steered(run.path, lambda: reporter.state, emit, mutex, review=review) as steering,
        ):
            _compiled(flow, options, emit, begun, steering, run, screen)
    show(reporter.state, screen)
    _doubts(reporter.state, run, screen)
    if bundle:
        lock, file = Path(options.out), beside(Path(options.out))
        kernels, size = flow.bundle(lock, options, file)
        screen.say(f"wrote {file}: {kernels} kernels with their templates, {tables.amount(size)}")
    screen.json({**tables.state_json(reporter.state), "run": str(run.path)})
    screen.next(f"agentcompile generate {_near(options.out)} --prompt TEXT")
    return 0


def _near(path: str) -> str:
    """Return a path as a command here takes it: relative where it lies below the current folder."""
    return quote(path.removeprefix(f"{Path.cwd()}/"))


def _naming(run: session.RunDirectory, screen: Screen) -> Emit:
    """Return an `Emit` that says once where the run lies: when its model is captured, and it will not be discarded."""
    named = False

    def emit(event: Event) -> None:
        nonlocal named
        if not named and isinstance(event, GraphCaptured):
            named = True
            screen.say(_where(run))

    return emit


def _where(run: session.RunDirectory) -> str:
    return f"run        {run.path}"


def _doubts(state: progress.State, run: session.RunDirectory, screen: Screen) -> None:
    """Say what a person should know before relying on a lock: that it is contended, or has no kernel."""
    if any(plan.contended for plan in state.final):
        again = resuming(run.path)
        screen.say(f"contended: other processes disturbed the timing; confirm it on a quiet machine: {again}")
    plans = [plan for plan in state.final if plan.phase == "decode"]
    if plans and not any(isinstance(part.choice, Kernel) for plan in plans for part in plan.parts):
        screen.say("no kernel: the lock runs every region of a step in PyTorch, for the reasons above")


def _compiled(
    flow: Flow,
    options: Options,
    emit: Emit,
    begun: progress.State,
    steering: Steering,
    run: session.RunDirectory,
    screen: Screen,
) -> None:
    """Run the flow; where the lock waits for a person, say what is open and which commands continue."""  # noqa: DOC501
    try:
        flow.compile(options, emit, begun.trials, steering)
    except AgentCompileError as error:
        if error.exit_code is not ExitCode.UNDECIDED:
            raise
        state = run.state()
        to_decide(state, screen)
        waits: AgentCompileError = undecided(state, run.path)
        if not open_items(state):
            waits = AgentCompileError(error.message, exit_code=error.exit_code, hint=goes_on(run.path))
        waits.facts = {**tables.state_json(state), "run": str(run.path)}
        raise waits from error


def _secrets(options: Options) -> tuple[str, ...]:
    """Return the key of the model that advises, if there is one; a missing key is reported when it is needed."""
    with suppress(AgentCompileError):
        return (advisor_secret(options),)
    return ()


def inspect(flags: Mapping[str, object], *, screen: Screen, flow: Flow = REAL) -> int:
    """Capture a checkpoint and show its regions, spaces and boundaries; nothing is built or timed."""
    options = resolve(flags).options
    _needs_model(options)
    with Reporter(screen) as reporter:
        flow.inspect(options, reporter)
    state = reporter.state
    for graph in state.graphs:
        unknown = f"; PyTorch runs {', '.join(graph.unknown)}" if graph.unknown else ""
        screen.text(f"{graph.phase}: {graph.operators} operators, graph {graph.digest[:12]}{unknown}")
    screen.table(tables.summary(state))
    _boundaries(state, screen)
    screen.json(tables.state_json(state))
    screen.next(f"agentcompile compile {_near(options.model)}")
    return 0


def show(state: progress.State, screen: Screen, *, every: bool = False) -> None:
    """Show the decode plan's regions and their measurements; all regions when there is no plan, or with `every`."""
    plan = next((plan for plan in state.final if plan.phase == "decode"), None)
    if plan is None or every:
        screen.table(tables.regions(state))
    else:
        screen.table(tables.plan(state, plan))
        out = len(state.rows) - len({part.region for part in plan.parts})
        if out:
            screen.text(f"{out} more regions overlap these; `agentcompile runs status --all` shows them")
    _boundaries(state, screen)
    for done in (plan for plan in state.final if plan.step_ns):
        screen.text(tables.plan_line(done))
    if state.pace is not None and (overhead := tables.overhead_line(state.pace)):
        screen.text(overhead)


def _boundaries(state: progress.State, screen: Screen) -> None:
    for boundary in state.boundaries:
        screen.text(f"boundary: {boundary.op} ({boundary.reason}): {boundary.detail}")


def _new(options: Options) -> session.RunDirectory:
    path = Path(options.run_dir) if options.run_dir else session.new_name(options.runs, options.model)
    return session.RunDirectory.create(path, encode(options))


def _spelled(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _needs_model(options: Options) -> None:
    if not options.model:
        raise AgentCompileError(
            "no model was named", hint="agentcompile compile MODEL, a checkpoint directory, a GGUF file or preset:NAME"
        )
