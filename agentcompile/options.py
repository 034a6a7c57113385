"""Settings: flags over ``AGENTCOMPILE_*`` variables over the project file over the user's file over defaults.

In: flags, environment, the nearest `agentcompile.toml` or `[tool.agentcompile]` of `pyproject.toml` upwards, and the
user's `config.toml`. Out: `Options`, and each value's source. Only this module reads the environment and these files.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast, get_args

from agentcompile import arguments
from agentcompile.errors import AgentCompileError
from agentcompile.ir.digest import digest
from agentcompile.ir.rule import Rule
from agentcompile.sandbox.fence import harmless
from agentcompile.system import hub

PREFIX = "AGENTCOMPILE_"
PROJECT_FILE = "agentcompile.toml"
USER_FILE = "config.toml"
DEFAULT_CONTEXT = 2048
"""Tokens that the KV cache holds when no context is given and the model allows that many."""

Kind = Literal[
    "text", "model", "path", "paths", "int", "counts", "target", "advisor", "price", "rule", "switch", "variable"
]
Value = str | int | tuple[str, ...] | tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting; its name is also the key in a file and the flag (with dashes), and the variable (in capitals)."""

    name: str
    kind: Kind
    about: str
    least: int = 0
    most: int = 2**31

    @property
    def default(self) -> Value:
        """The value when nobody gives one; it is the default of the field in `Options`."""
        return cast(Value, Options.__dataclass_fields__[self.name].default)

    @property
    def key(self) -> str:
        """The setting's name in a file, and after `--` as a flag."""
        return self.name.replace("_", "-")


SETTINGS: tuple[Setting, ...] = (
    Setting(name="model", kind="model", about="a Hugging Face checkpoint, a GGUF file, or preset:NAME"),
    Setting(name="target", kind="target", about="what to compile for: auto, cpu or cuda:N"),
    Setting(name="context", kind="int", least=1, most=1 << 20, about="context in tokens; unset: 2,048 or the model's"),
    Setting(name="batch", kind="counts", least=1, most=8, about="batch sizes of the decode step, a plan each: 1,2,4,8"),
    Setting(name="threads", kind="int", most=1024, about="worker threads (0 = one per physical core)"),
    Setting(
        name="advisor",
        kind="advisor",
        about="who orders the search: heuristic, none, random:SEED, openai:MODEL[@BASE_URL] or replay:DIR",
    ),
    Setting(name="strategy", kind="text", about="search strategy: halving, exhaustive, random, evolutionary, …"),
    Setting(name="choose", kind="rule", about="how the plan is chosen: admitted, isolated, first or pytorch"),
    Setting(name="advisor_key", kind="variable", about="variable with the adviser's API key; empty: OpenAI's own"),
    Setting(name="advisor_calls", kind="int", most=1000, about="request limit for the adviser"),
    Setting(name="advisor_tokens", kind="int", most=100_000_000, about="token limit for the adviser, both ways"),
    Setting(
        name="advisor_cents", kind="int", most=10_000_000, about="cost limit of the adviser in US cents (0 = none)"
    ),
    Setting(name="advisor_price", kind="price", about="dollars per million tokens of input and output: IN,OUT"),
    Setting(name="advisor_context", kind="int", most=1 << 30, about="context of the adviser's server (0 = found out)"),
    Setting(name="advisor_seconds", kind="int", least=1, most=86_400, about="time limit in seconds for all answers"),
    Setting(name="budget", kind="int", most=1_000_000, about="candidates to evaluate, about, for each batch size"),
    Setting(name="seconds", kind="int", most=1_000_000, about="seconds for search and step tuning (0 = no limit)"),
    Setting(name="memory", kind="switch", about="whether findings of earlier runs on like regions order the search"),
    Setting(name="review", kind="switch", about="whether the lock waits for review of every region"),
    Setting(name="seed", kind="int", about="random seed of inputs, measurement order and ties"),
    Setting(name="out", kind="path", about="path of the lock file"),
    Setting(name="run_dir", kind="path", about="run directory; empty: a new folder among the runs"),
    Setting(name="templates", kind="paths", about="more template folders, searched after those that ship"),
    Setting(name="user_templates", kind="switch", about="whether the folder of written templates is searched as well"),
    Setting(name="compiler", kind="text", about="the host's C++ compiler; empty: the first of g++, clang++, c++"),
    Setting(name="home", kind="path", about="the folder of store, database and runs; empty: the system's places"),
)
_CUDA = re.compile(r"cuda:\d{1,3}")
_FILE = {setting.key: setting for setting in SETTINGS}
_VARIABLE = {PREFIX + setting.name.upper(): setting for setting in SETTINGS}
_FLAG = {setting.name: setting for setting in SETTINGS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Every setting, checked; paths are absolute, except that an empty one means the default place."""

    model: str = ""
    target: str = "auto"
    """The target: ``auto``, ``cpu`` or ``cuda:N``."""
    context: int = 0
    batch: tuple[int, ...] = (1,)
    """Batch sizes with a plan each, sorted; batch 1 is always among them."""
    threads: int = 0
    advisor: str = "heuristic"
    strategy: str = "halving"
    choose: Rule = "admitted"
    advisor_key: str = ""
    """The name of an environment variable; no option holds the key itself."""
    advisor_calls: int = 8
    advisor_tokens: int = 200_000
    advisor_cents: int = 0
    advisor_price: str = ""
    advisor_context: int = 0
    advisor_seconds: int = 600
    budget: int = 160
    seconds: int = 900
    memory: bool = True
    review: bool = False
    seed: int = 0
    out: str = "agentcompile.lock.toml"
    run_dir: str = ""
    templates: tuple[str, ...] = ()
    user_templates: bool = True
    compiler: str = ""
    home: str = ""

    @property
    def digest(self) -> str:
        """Identity of the options that shape the result; where files are written does not count."""
        return digest(
            "options/1",
            self.model,
            self.target,
            self.context or DEFAULT_CONTEXT,
            self.threads,
            self.advisor,
            self.budget,
            self.seconds,
            self.seed,
            list(self.templates),
            self.compiler,
            *((",".join(map(str, self.batch)),) if self.batch != (1,) else ()),
            *((f"choose {self.choose}",) if self.choose != "admitted" else ()),
            *((f"strategy {self.strategy}",) if self.strategy != "halving" else ()),
            *(() if self.memory else ("no memory",)),
            *(() if self.user_templates else ("no user templates",)),
        )

    @property
    def cache(self) -> Path:
        """The folder of what can be made again: the store of sources and binaries, and the measurement database."""
        if self.home:
            return Path(self.home) / "cache"
        import platformdirs

        return platformdirs.user_cache_path("agentcompile")

    @property
    def store(self) -> Path:
        """The root of the content-addressed store."""
        return self.cache / "store"

    @property
    def history(self) -> Path:
        """The file of the measurement database."""
        return self.cache / "history.sqlite"

    @property
    def data(self) -> Path:
        """The folder of what cannot be made again: runs, and templates that were written here."""
        if self.home:
            return Path(self.home)
        import platformdirs

        return platformdirs.user_data_path("agentcompile")

    @property
    def runs(self) -> Path:
        """The folder of run directories."""
        return self.data / "runs"

    @property
    def written(self) -> Path:
        """The folder of templates that were written on this machine; it need not exist."""
        return self.data / "templates"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """The options and, for each setting in the order of `SETTINGS`, where its value came from."""

    options: Options
    sources: tuple[tuple[str, str], ...]


def resolve(
    flags: Mapping[str, object] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    origin: Literal["flag", "argument"] = "flag",
) -> Resolved:
    """Return every setting's value and source; a flag that is None counts as not given.

    `origin` is what messages call the flags: of the command line (`--run-dir`), or arguments of Python (`run_dir`).

    Raises:
        AgentCompileError: a setting is wrong (usage); it names file or variable, key, value and what is allowed.
    """
    environ = os.environ if environ is None else environ
    cwd = (cwd or Path.cwd()).resolve()
    values: dict[str, Value] = {}
    sources: dict[str, str] = {}

    def take(layer: Mapping[str, object], source: str, base: Path, spelled: Mapping[str, Setting]) -> None:
        for name, raw in layer.items():
            setting = spelled.get(name)
            if setting is None:
                raise _unknown(source, name, tuple(spelled))
            shown = {"flag": f"--{setting.key}", "argument": name}.get(source, f"{source}: {name}")
            values[setting.name] = _parse(setting, raw, shown, base)
            sources[setting.name] = source

    for setting in SETTINGS:
        values[setting.name], sources[setting.name] = setting.default, "default"
    user = user_file(environ)
    if (table := _read(user)) is not None:
        take(table, str(user), user.parent, _FILE)
    if (found := _project(cwd)) is not None:
        take(found[1], str(found[0]), found[0].parent, _FILE)
    variables = {key: environ[key] for key in sorted(environ) if key.startswith(PREFIX)}
    take(variables, "environment", cwd, _VARIABLE)
    take({name: value for name, value in (flags or {}).items() if value is not None}, origin, cwd, _FLAG)
    if sources["out"] == "default":
        values["out"] = str(cwd / str(values["out"]))
    fields: dict[str, Any] = dict(values)
    return Resolved(
        options=Options(**fields), sources=tuple((setting.name, sources[setting.name]) for setting in SETTINGS)
    )


def user_file(environ: Mapping[str, str] | None = None) -> Path:
    """Return the path of the user's settings file, which need not exist."""
    environ = os.environ if environ is None else environ
    if home := environ.get(PREFIX + "HOME"):
        return Path(home) / USER_FILE
    import platformdirs

    return platformdirs.user_config_path("agentcompile") / USER_FILE


def terminal(environ: Mapping[str, str] | None = None) -> tuple[bool, bool]:
    """Return whether the terminal can redraw a line (not `TERM=dumb`), and whether it wants colour (no `NO_COLOR`)."""
    environ = os.environ if environ is None else environ
    return environ.get("TERM", "") != "dumb", not environ.get("NO_COLOR")


def automation(environ: Mapping[str, str] | None = None) -> str:
    """Return the variable that says that no person is there (`CI`, as build services set it); empty when none does."""
    environ = os.environ if environ is None else environ
    return "CI" if environ.get("CI", "").lower() not in ("", "0", "false") else ""


def passed_on(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables that confined processes get: paths, languages and settings of numeric libraries."""
    return harmless(os.environ if environ is None else environ)


def checkpoint_named(shown: str, text: str, base: Path) -> str:
    """Return what names a checkpoint: a preset, an absolute path, or the local snapshot of the hub's `ORG/NAME`."""
    path = "" if text.startswith("preset:") else arguments.located(shown, text, base)
    found = hub.snapshot(text, os.environ) if path and not os.path.lexists(path) else None
    return str(found or path or text)


def visible_devices(environ: Mapping[str, str] | None = None) -> str | None:
    """Return `CUDA_VISIBLE_DEVICES`: None when unset, which hides nothing; an empty text hides every GPU."""
    return (os.environ if environ is None else environ).get("CUDA_VISIBLE_DEVICES")


def _project(cwd: Path) -> tuple[Path, Mapping[str, object]] | None:
    """Return the nearest project settings, upwards from `cwd`; in one folder, `agentcompile.toml` wins."""
    for folder in (cwd, *cwd.parents):
        own = folder / PROJECT_FILE
        if (table := _read(own)) is not None:
            return own, table
        shared = folder / "pyproject.toml"
        tool = (_read(shared) or {}).get("tool", {})
        if isinstance(tool, dict) and isinstance(table := tool.get("agentcompile"), dict):
            return shared, table
    return None


def _read(path: Path) -> dict[str, object] | None:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise AgentCompileError(f"{path}: unreadable: {error}", hint="correct the file, or move it away") from error


def _unknown(origin: str, name: str, allowed: tuple[str, ...]) -> AgentCompileError:
    near = difflib.get_close_matches(name, allowed, n=1, cutoff=0.5)
    hint = f"did you mean `{near[0]}`?" if near else f"the settings are {', '.join(allowed)}"
    return AgentCompileError(f"{origin}: {name}: no such setting", hint=hint)


def _parse(setting: Setting, raw: object, shown: str, base: Path) -> Value:
    match setting.kind:
        case "int":
            return _integer(setting, raw, shown)
        case "counts":
            parts = raw.split(",") if isinstance(raw, str) else raw if isinstance(raw, (list, tuple)) else [raw]
            return tuple(sorted({1, *(_integer(setting, str(part).strip(), shown) for part in parts)}))
        case "paths":
            items = raw.split(os.pathsep) if isinstance(raw, str) else raw
            if not isinstance(items, Sequence) or not all(isinstance(item, str) for item in items):
                raise _wrong(shown, raw, "a list of folders")
            return tuple(arguments.located(shown, item, base) for item in items if item)
        case "model":
            return checkpoint_named(shown, _string(raw, shown), base)
        case "path":
            return arguments.located(shown, _string(raw, shown), base)
        case "target":
            text = _string(raw, shown)
            return text if _CUDA.fullmatch(text) else _choice(text, ("auto", "cpu", "cuda:0"), shown)
        case "rule":
            return _choice(_string(raw, shown), get_args(Rule), shown)
        case "advisor":
            return arguments.adviser(shown, _string(raw, shown), base)
        case "price":
            text = _string(raw, shown)
            if text and arguments.prices(text) is None:
                raise _wrong(shown, raw, "two amounts in dollars, such as 0.15,0.60")
            return text
        case "text":
            return _string(raw, shown)
        case "variable":
            if not re.fullmatch(r"([A-Z_][A-Z0-9_]{0,63})?", text := _string(raw, shown)):
                hint = "put the key into a variable, say MY_KEY, and name that"  # the value may be the key itself
                raise AgentCompileError(f"{shown}: no name of a variable in capital letters", hint=hint)
            return text
        case "switch":
            words: dict[object, bool] = {True: True, False: False, "true": True, "false": False}
            if not isinstance(raw, (bool, str)) or raw not in words:
                raise _wrong(shown, raw, "true or false")
            return words[raw]


def advisor_secret(options: Options, environ: Mapping[str, str] | None = None) -> str:
    """Return the key of the model that advises, from the variable that the options name.

    Without a name it is `OPENAI_API_KEY` for OpenAI's own server and "" for any other, which must not see that key.

    Raises:
        AgentCompileError: the variable is not set (usage).
    """
    environ = os.environ if environ is None else environ
    own = options.advisor.startswith("openai:") and "@http" not in options.advisor
    name = options.advisor_key or ("OPENAI_API_KEY" if own else "")
    if not name:
        return ""
    if not (key := environ.get(name, "").strip()):
        raise AgentCompileError(
            f"--advisor {options.advisor}: the variable {name[:80]} is not set",
            hint=f"put the key into {name[:80]}, or name another variable with --advisor-key",
        )
    return key


def _integer(setting: Setting, raw: object, shown: str) -> int:
    if isinstance(raw, bool) or not (hasattr(raw, "__index__") or re.fullmatch(r"-?[0-9]{1,18}", str(raw))):
        raise _wrong(shown, raw, "a whole number")
    value: int = int(raw)  # type: ignore[call-overload]
    if not setting.least <= value <= setting.most:
        raise _wrong(shown, raw, f"from {setting.least} to {setting.most}")
    return value


def _string(raw: object, shown: str) -> str:
    if not isinstance(raw, str):
        raise _wrong(shown, raw, "a text")
    return arguments.text(shown, raw)


def _choice(text: str, allowed: tuple[str, ...], shown: str) -> str:
    if text not in allowed:
        near = difflib.get_close_matches(text, allowed, n=1)
        raise _wrong(shown, text, " or ".join(allowed) + (f" (did you mean {near[0]}?)" if near else ""))
    return text


def _wrong(shown: str, raw: object, allowed: str) -> AgentCompileError:
    return AgentCompileError(f"{shown}: {str(raw)[:80]!r} is not allowed", hint=f"allowed: {allowed}")
