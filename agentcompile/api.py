"""The library's two functions: `compile` makes a lockfile, `load` runs one, or compiles a checkpoint first."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from agentcompile import arguments
from agentcompile.checkpoint.names import PRESET, gguf_at
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.events import Emit, Event, RunFailed, Warned, silent
from agentcompile.ir.codec import encode
from agentcompile.ir.trial import Rule
from agentcompile.lockfile.bundle import beside
from agentcompile.lockfile.schema import Lock
from agentcompile.options import DEFAULT_CONTEXT, SETTINGS, Options, Setting, checkpoint_named, resolve
from agentcompile.replay.bundling import bundle_lock
from agentcompile.replay.load import replay_lock
from agentcompile.runs.progress import State
from agentcompile.runs.resumed import resumed_options, run_to_resume
from agentcompile.runs.session import Journal, RunDirectory
from agentcompile.runs.status import nothing_done
from agentcompile.system import hub

if TYPE_CHECKING:
    import torch

    from agentcompile.runtime.model import CompiledModel

LOADABLE = (
    "a lock or a bundle that `agentcompile compile MODEL` wrote, a checkpoint directory, a GGUF file, or preset:NAME"
)
WITH_A_LOCK = ("target", "threads", "seed", "templates", "user_templates", "compiler", "home")
"""The settings that say where and with what a lock is opened; all others shape a compilation."""
_SETTINGS = {setting.name: setting for setting in SETTINGS}

__all__ = ["compile", "load"]


class Compiling(TypedDict, total=False):
    """The settings of a compilation, named as on the command line; None is not given."""

    target: str | None
    context: int | None
    batch: int | Sequence[int] | None
    threads: int | None
    advisor: str | None
    strategy: str | None
    choose: Rule | None
    advisor_key: str | None
    advisor_calls: int | None
    advisor_tokens: int | None
    advisor_cents: int | None
    advisor_price: str | None
    advisor_context: int | None
    advisor_seconds: int | None
    budget: int | None
    seconds: int | None
    memory: bool | None
    review: bool | None
    seed: int | None
    run_dir: str | Path | None
    templates: str | Path | Sequence[str | Path] | None
    user_templates: bool | None
    compiler: str | None
    home: str | Path | None


def compile(
    model: str | Path | torch.nn.Module = "",
    *,
    out: str | Path | None = None,
    target: str | None = None,
    context: int | None = None,
    batch: int | Sequence[int] | None = None,
    threads: int | None = None,
    advisor: str | None = None,
    strategy: str | None = None,
    choose: Rule | None = None,
    advisor_key: str | None = None,
    advisor_calls: int | None = None,
    advisor_tokens: int | None = None,
    advisor_cents: int | None = None,
    advisor_price: str | None = None,
    advisor_context: int | None = None,
    advisor_seconds: int | None = None,
    budget: int | None = None,
    seconds: int | None = None,
    memory: bool | None = None,
    review: bool | None = None,
    seed: int | None = None,
    run_dir: str | Path | None = None,
    templates: str | Path | Sequence[str | Path] | None = None,
    user_templates: bool | None = None,
    compiler: str | None = None,
    home: str | Path | None = None,
    save_to: str | Path = "",
    bundle: bool = False,
    resume: bool = False,
    emit: Emit = silent,
) -> Lock:
    """Compile a checkpoint or a module of the decoder protocol, and write its lock to `out`.

    A checkpoint is a directory, a GGUF file or `preset:NAME`. The weights and graphs of a module are saved to `save_to`
    first, which then serves as its checkpoint. The other arguments are the settings of the command line
    (`agentcompile compile --help` says what each is); one that is None takes its value from the environment, the
    settings files or the defaults. With `run_dir` the run's events are recorded there, so that `agentcompile runs` and
    the app show it; `emit` receives them as well. With `bundle` the lock and its sources are written beside it too, as
    one file that outlives their templates. A `review` needs the command line, whose run waits for a person.

    With `resume` the run in `run_dir` goes on, or the newest one that has not finished: of `model`, if that is given.
    It has the settings that it was started with; nothing that it measured is measured again.

    Raises:
        AgentCompileError: an argument is wrong, or compilation failed for a reason that the user can fix.
    """
    given = dict(locals())
    settings = {name: given[name] for name in _SETTINGS if name != "model"}
    together = arguments.switch("bundle", bundle)
    made_by = _resume if arguments.switch("resume", resume) else _compile
    lock, options = made_by(model, settings, save_to, emit)
    if together:
        bundle_lock(Path(options.out), options, beside(Path(options.out)))
    return lock


def load(
    lock: str | Path,
    *,
    model: str | Path = "",
    options: Options | None = None,
    emit: Emit = silent,
    **settings: Unpack[Compiling],
) -> CompiledModel:
    """Load a model for generation: `load("lock.toml").generate("def f(")`.

    `lock` is a lock or a bundle, and `model` its checkpoint when that is not where the lock records it. Kernels that
    were not validated before on this machine and toolchain are validated now: seconds at the first time, minutes for
    the prompts of a GPU. `emit` receives how many are done, what drifted, and a warning when the lock's own sources run
    because the templates here have changed.

    `lock` may also be a checkpoint directory, a GGUF file or `preset:NAME`, with any of the settings of `compile`. It
    is compiled the first time: as long as `seconds` allows (15 minutes by default), and after that the whole-model
    check. Its lock is kept in the folder `locks` of the user's data, under the checkpoint's name and a digest of the
    settings; later calls load it in seconds while it holds here without drift, and compile again when it does not.

    Raises:
        AgentCompileError: an argument is wrong, or the model cannot be loaded or compiled for a reason that the user
            can fix.
    """  # noqa: DOC501
    where, given = arguments.path("lock", lock), arguments.path("model", model)
    if options is not None and not isinstance(options, Options):
        raise arguments.wrong("options", options, "agentcompile.options.Options, or None")
    _callable(emit)
    asked: Mapping[str, object] = settings
    if "out" in asked:
        text = f"out: {arguments.shown(asked['out'])}: `load` keeps the lock of a checkpoint itself"
        raise AgentCompileError(text, hint="call compile, and load what it wrote")
    flags = _flags(asked)
    if options is not None and flags:
        raise AgentCompileError(f"{next(iter(flags))}: given beside options", hint="give one of them")
    if _is_checkpoint(where):
        if given:
            text = f"model: {arguments.shown(given)}, and {arguments.shown(where)} is a checkpoint, not a lock"
            raise AgentCompileError(text, hint="leave model out")
        found = options or resolve({**flags, "model": where}, origin="argument").options
        return _kept(replace(found, model=resolve({"model": where}, origin="argument").options.model), emit)
    for name in flags:
        if name not in WITH_A_LOCK:
            text = (
                f"{name}: {arguments.shown(flags[name])}: {arguments.shown(where)} is a lock, which is compiled already"
            )
            raise AgentCompileError(text, hint="give its checkpoint in place of the lock, or leave this out")
    if given:
        flags["model"] = given
    return replay_lock(Path(where).expanduser(), options or resolve(flags, origin="argument").options, emit)


def _compile(
    model: str | Path | torch.nn.Module, settings: Mapping[str, object], save_to: str | Path, emit: Emit
) -> tuple[Lock, Options]:
    import torch

    from agentcompile.capture.cached import save_module

    _callable(emit)
    directory, flags = arguments.path("save_to", save_to), _flags(settings)
    module = model if isinstance(model, torch.nn.Module) else None
    if isinstance(model, torch.nn.Module):
        if not directory:
            raise AgentCompileError("save_to: a module needs a directory for its weights", hint="give save_to")
        context = resolve({"context": flags.get("context")}, origin="argument").options.context
        save_module(model, Path(directory), context or DEFAULT_CONTEXT)
        model = Path(directory)
    flags["model"] = arguments.path("model", model)
    if not flags["model"]:
        hint = f"give {LOADABLE.partition(', ')[2]}, a module, or a run_dir to resume"
        raise AgentCompileError("model: none was named", hint=hint)
    options = resolve(flags, origin="argument").options
    return _run(options, emit, module), options


def _resume(
    model: str | Path | torch.nn.Module, settings: Mapping[str, object], save_to: str | Path, emit: Emit
) -> tuple[Lock, Options]:
    """Let a run that has not finished go on, with its own settings.

    Raises:
        AgentCompileError: there is none, a setting differs from its own, or its lock waits for a person.
    """
    _callable(emit)
    if directory := arguments.path("save_to", save_to):
        text = f"save_to: {arguments.shown(directory)}: a run that goes on has its model's weights already"
        raise AgentCompileError(text, hint="leave save_to out; model may be the directory that it was")
    flags = _flags(settings)
    if given := arguments.path("model", model):
        flags["model"] = given
    asked = resolve(flags, origin="argument").options
    run = run_to_resume(asked, flags, str)
    options, state = resumed_options(run, asked, flags, str), run.state()
    if options.review or state.review is not None:
        hint = f"agentcompile compile --resume --run-dir {run.path}"
        raise AgentCompileError(
            f"resume: the lock of {run.path} waits for review, which needs the command line", hint=hint
        )
    return _recorded(run, options, emit, earlier=state), options


def _run(options: Options, emit: Emit, module: torch.nn.Module | None = None) -> Lock:
    """Compile, and record the run where it has a directory; one that failed on its arguments leaves none.

    Raises:
        AgentCompileError: the compilation failed for a reason that the user can fix; the run's last event says so.
    """
    from agentcompile.pipeline import compile_model

    if not options.run_dir:
        return compile_model(options, emit, module=module)
    return _recorded(RunDirectory.create(Path(options.run_dir), encode(options)), options, emit, module=module)


def _recorded(
    run: RunDirectory,
    options: Options,
    emit: Emit,
    *,
    earlier: State | None = None,
    module: torch.nn.Module | None = None,
) -> Lock:
    from agentcompile.control.steering import Steering
    from agentcompile.pipeline import compile_model

    past, steering = ((), None) if earlier is None else (earlier.trials, Steering(earlier))
    with Journal(run) as journal:

        def both(event: Event) -> None:
            journal.append(event)
            emit(event)

        try:
            return compile_model(options, both, past=past, steering=steering, module=module)
        except AgentCompileError as error:
            if nothing_done(run.state(), error) and run.discard():
                raise
            with suppress(AgentCompileError, OSError):  # a full disk was reported already
                both(RunFailed(exit_code=int(error.exit_code), message=error.message, hint=error.hint))
            raise


def _kept(options: Options, emit: Emit) -> CompiledModel:
    """Load the lock that was kept of this checkpoint with these options, or compile it.

    Raises:
        AgentCompileError: it cannot be compiled, or its lock holds and does not run here.
    """
    name = re.sub(r"[^\w.-]+", "-", Path(options.model.removeprefix(PRESET)).name)[:60]
    lock = options.data / "locks" / f"{name}-{options.digest[:16]}.lock.toml"
    if lock.is_file():
        try:
            return replay_lock(lock, options, emit, locked=True)
        except AgentCompileError as error:
            if error.exit_code not in (ExitCode.DRIFT, ExitCode.USAGE):  # usage: the file is damaged
                raise
            emit(Warned(text=f"{lock} does not hold any more and is compiled again: {error.message}"))
    _run(replace(options, out=str(lock)), emit)
    return replay_lock(lock, options, emit)


def _is_checkpoint(where: str) -> bool:
    """Return whether a path is a checkpoint to compile, rather than a lock or a bundle.

    Raises:
        AgentCompileError: it is neither (usage).
    """
    if where.startswith(PRESET):
        return True
    path = Path(checkpoint_named("lock", where, Path()))
    try:
        if gguf_at(path) is not None:
            return True
        if path.is_dir():
            if (path / "config.json").is_file():
                return True
            raise AgentCompileError(f"lock: {where}: a directory without config.json", hint=f"give {LOADABLE}")
        if not path.exists():
            more = hub.missing(path, Path())
            hint = f"give {LOADABLE}{'; ' + more if more else ''}"
            raise AgentCompileError(f"lock: {where}: there is no such file or directory", hint=hint)
    except OSError as error:
        reason = error.strerror or str(error)
        raise AgentCompileError(f"lock: {where}: {reason}", hint=f"give {LOADABLE}") from error
    return False


def _flags(settings: Mapping[str, Any]) -> dict[str, object]:
    """Return the settings that are given, each checked for its type and range under its own name."""
    return {name: _checked(name, _SETTINGS.get(name), value) for name, value in settings.items() if value is not None}


def _checked(name: str, setting: Setting | None, value: Any) -> object:
    if setting is None:
        resolve({name: value}, origin="argument")  # names the nearest
        raise AssertionError(name)
    match setting.kind:
        case "int":
            return arguments.whole(name, value, setting.least, setting.most)
        case "counts":
            return arguments.one_or_more(name, value, setting.least, setting.most)
        case "switch":
            return arguments.switch(name, value)
        case "paths":
            every = value if isinstance(value, (list, tuple)) else [value]
            return [arguments.path(f"{name}[{index}]", one) for index, one in enumerate(every)]
        case "path" | "model":
            return arguments.path(name, value)
        case _:
            return arguments.text(name, value)


def _callable(emit: object) -> None:
    if not callable(emit):
        raise arguments.wrong("emit", emit, "a function of one event")
