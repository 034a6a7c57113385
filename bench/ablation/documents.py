"""The two formats of recorded spaces, from bytes to points: Kernel Tuner's cache and T4's results document.

Sources: kernel_tuner/util.py (`process_cache`, `store_cache`) and schema/T4/1.0.0/results-schema.json of Kernel Tuner
1.5.0. Pure; whatever is wrong with a document is a `Fault`, which says how to mend it.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import re
import statistics
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from agentcompile.interchange.t4 import OBJECTIVE, SCHEMA_VERSION, Invalidity
from agentcompile.ir.cleaning import clean
from agentcompile.ir.template import Params, ParamValue

NS_PER_MS = 1e6
_KINDS: Mapping[str, Invalidity] = {
    "CompilationFailedConfig": "compile", "RuntimeFailedConfig": "runtime", "InvalidConfig": "constraints",
}  # fmt: skip
"""Kernel Tuner's failures in T4's words; any other text is a failure at run time."""
_TEMPLATE = "template"
"""The key of a T4 configuration that is not a parameter: what `agentcompile export` writes."""
_NAMELESS = "kernel"
"""The template of a document that names none."""
_MS = ("", "ms", "milliseconds")


class Fault(Exception):
    """What is wrong with a document, and the remedy."""

    def __init__(self, text: str, hint: str = "") -> None:
        super().__init__(text)
        self.text, self.hint = text, hint or "record the space again, or mend the file"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a point has no time: T4's word, and the text of the file."""

    kind: Invalidity
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A recorded point: its template, every parameter with its value, and its time in ns or its failure."""

    template: str
    settings: Params
    ranks: tuple[int | None, ...]
    """The place of each value in its declared domain; None where the document declares none."""
    outcome: float | Failure
    half_width: float = 0.0
    """Half the width of the 95 % interval of its log speed-up, where the document has one."""
    baseline_ns: float = 0.0
    """The time in ns of what it was timed beside, where the document has one."""


def points_of(data: bytes) -> tuple[str, list[Point]]:
    """Return the device's name and the points of a document, in its order.

    Raises:
        Fault: it is not JSON, is of neither format or of another version, or contradicts itself.
    """
    document = _parsed(data)
    if not isinstance(document, dict):
        raise Fault(f"a {_kind(document)} instead of a table", _FORMATS)
    if "cache" in document or "tune_params_keys" in document:
        device, points = _of_cache(document)
    elif "results" in document or "schema_version" in document:
        device, points = _of_results(document)
    else:
        raise Fault("neither a cache of Kernel Tuner nor a T4 results document", _FORMATS)
    if not points:
        raise Fault("it has no point", "record at least one point")
    return device, points


def unpacked(data: bytes, most_bytes: int) -> bytes:
    """Return the content of a gzip file, or `data` itself where it is none.

    Raises:
        Fault: it is cut short or damaged, or holds more than `most_bytes`.
    """
    if not data.startswith(b"\x1f\x8b"):
        return data
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            whole = file.read(most_bytes + 1)
    except EOFError as error:
        raise Fault("the gzip file is cut short", "copy the file again") from error
    except (OSError, zlib.error) as error:
        raise Fault(f"the gzip file is damaged: {error}", "copy the file again") from error
    if len(whole) > most_bytes:
        raise Fault(f"more than {most_bytes} bytes unpacked", "leave single samples out of the file")
    return whole


_FORMATS = "name a cache of Kernel Tuner (tune_params_keys, tune_params, cache) or T4 results (schema_version, results)"


_MAY_BE_HALF = re.compile(r"\\u[dD][89a-fA-F]")
"""An escape of half a surrogate pair; only with both halves it is a character."""


def _parsed(data: bytes) -> Any:
    try:
        text = data.decode(json.detect_encoding(data))
        document = json.loads(text, object_pairs_hook=_table)
        if _MAY_BE_HALF.search(text):
            json.dumps(document, ensure_ascii=False).encode()
        return document
    except json.JSONDecodeError as error:
        if not data.strip():
            raise Fault("the file is empty", "copy the file again") from error
        if error.pos >= len(error.doc.rstrip()) or error.msg.startswith("Unterminated"):
            hint = "copy it again; Kernel Tuner leaves the last two brackets out of a cache until its run ends"
            raise Fault(f"cut short: the JSON ends at line {error.lineno}", hint) from error
        raise Fault(f"no JSON: {error.msg} at line {error.lineno}, column {error.colno}", _FORMATS) from error
    except UnicodeDecodeError as error:
        raise Fault(f"no JSON: not UTF-8 at byte {error.start}", _FORMATS) from error
    except UnicodeEncodeError as error:
        before = str(error.object)[max(error.start - 20, 0) : error.start]
        text = f"half of a surrogate pair, which is no character, stands after {before!r}"
        raise Fault(text, "write texts as UTF-8") from error
    except RecursionError as error:
        raise Fault("no JSON that can be read: too many levels", _FORMATS) from error
    except ValueError as error:  # an integer of thousands of digits
        raise Fault(f"no JSON that can be read: {error}", _FORMATS) from error


def _table(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for at, name in enumerate(names) if name in names[:at])
        raise Fault(f"the key {twice!r} comes twice in one table", "remove one of the two")
    return found


def _of_cache(document: Mapping[str, Any]) -> tuple[str, list[Point]]:
    version = document.get("schema_version", "1.0.0")
    if not isinstance(version, str) or version.partition(".")[0] != "1":
        raise Fault(f"schema_version: {version!r} is not 1.x of Kernel Tuner's cache", "convert it with Kernel Tuner")
    names = _item(document, "tune_params_keys", list)
    if not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise Fault("tune_params_keys: must be different names")
    declared, entries = _item(document, "tune_params", dict), _item(document, "cache", dict)
    ranks = dict[str, dict[ParamValue, int]]()
    for name in names:
        values = [_value(value, f"tune_params.{name}") for value in _item(declared, name, list, "tune_params.")]
        ranks[name] = {value: at for at, value in enumerate(values)}
        if len(ranks[name]) < len(values):
            raise Fault(f"tune_params.{name}: has a value twice")
    template = _text(document, "kernel_name") or _NAMELESS
    points, seen = list[Point](), dict[Params, str]()
    for key, entry in entries.items():
        where = f"cache[{key[:80]!r}]"
        if not isinstance(entry, dict):
            raise Fault(f"{where}: a {_kind(entry)} instead of a table")
        settings = tuple((name, _value(_present(entry, name, where), f"{where}.{name}")) for name in names)
        for name, value in settings:
            if value not in ranks[name]:
                raise Fault(f"{where}.{name}: {value!r} is not in its domain, tune_params.{name}")
        if settings in seen:
            raise Fault(f"{where}: the same configuration as cache[{seen[settings][:80]!r}]", "remove one of the two")
        seen[settings] = key
        failure = entry.get("__error__")
        outcome = _outcome(_present(entry, "time", where) if failure is None else failure, f"{where}.time")
        at = tuple(ranks[name][value] for name, value in settings)
        points.append(Point(template=template, settings=settings, ranks=at, outcome=outcome))
    return _text(document, "device_name"), points


def _outcome(time: object, where: str) -> float | Failure:
    # A time in ms becomes ns, a text the failure that it names.
    if isinstance(time, str):
        if _is_number(time):
            raise Fault(f"{where}: {time!r} is a number in quotes", "write times as JSON numbers")
        return Failure(kind=_KINDS.get(time, "runtime"), text=time[:160])
    return _ns(time, where)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _ns(time: object, where: str) -> float:
    if isinstance(time, bool) or not isinstance(time, (int, float)):
        raise Fault(f"{where}: a {_kind(time)} is no time")
    try:
        ns = float(time) * NS_PER_MS
    except OverflowError:
        ns = math.inf
    if not (math.isfinite(ns) and ns > 0):
        shown = f"{time:g}" if isinstance(time, float) else str(time)[:40]
        raise Fault(f"{where}: {shown} ms is no time: it must be above 0 and finite", "record a failure as its text")
    return ns


def _of_results(document: Mapping[str, Any]) -> tuple[str, list[Point]]:
    version = document.get("schema_version")
    if version != SCHEMA_VERSION:
        shown = "missing" if version is None else f"{version!r} is not {SCHEMA_VERSION}"
        raise Fault(f"schema_version: {shown}", f"convert the document to version {SCHEMA_VERSION} of T4's results")
    about = document.get("metadata", {})
    unit = about.get("timeunit", "milliseconds") if isinstance(about, dict) else "milliseconds"
    if unit not in _MS:
        raise Fault(f"metadata.timeunit: {unit!r} is not milliseconds", "convert the times to milliseconds")
    name = (_text(about, "kernel") if isinstance(about, dict) else "") or _NAMELESS
    points, keys = dict[tuple[str, Params], Point](), dict[str, tuple[str, ...]]()
    for at, result in enumerate(_item(document, "results", list)):
        where = f"results[{at}]"
        if not isinstance(result, dict):
            raise Fault(f"{where}: a {_kind(result)} instead of a table")
        settings = dict(_item(result, "configuration", dict, f"{where}."))
        template = settings.pop(_TEMPLATE, name)
        if not isinstance(template, str):
            raise Fault(f"{where}.configuration.template: a {_kind(template)} is no name")
        known = keys.setdefault(template, tuple(settings))
        if settings.keys() != set(known):
            raise Fault(f"{where}.configuration: other parameters than before: {', '.join(sorted(settings))[:120]}")
        values = tuple((key, _value(settings[key], f"{where}.configuration.{key}")) for key in known)
        measured = _measurements(result, where)
        # Our own documents have every trial; a candidate has several, with their fidelity, and the last one counts.
        if (template, values) in points and "fidelity" not in measured:
            raise Fault(f"{where}: the same configuration as an earlier result", "remove one of the two")
        outcome = _of_result(result, measured, where)
        points[template, values] = Point(
            template=template, settings=values, ranks=(None,) * len(values), outcome=outcome,
            half_width=_number(measured, "log_speedup_half_width", where),
            baseline_ns=_number(measured, "time_baseline", where, NS_PER_MS),
        )  # fmt: skip
    return _text(about, "device") if isinstance(about, dict) else "", list(points.values())


def _number(measured: Mapping[str, Mapping[str, Any]], name: str, where: str, scale: float = 1.0) -> float:
    """Return a measurement that documents of ours have, times `scale`; 0 where there is none."""  # noqa: DOC501
    value = measured.get(name, {}).get("value", 0.0)
    if not isinstance(value, (int, float)) or (isinstance(value, float) and not math.isfinite(value)):
        return 0.0
    try:
        number = float(value) * scale
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise Fault(f"{where}.measurements.{name}: {str(value)[:40]} is out of the range of a float")
    return number


def _of_result(result: Mapping[str, Any], measured: Mapping[str, Mapping[str, Any]], where: str) -> float | Failure:
    invalidity = _present(result, "invalidity", where)
    if invalidity not in get_args(Invalidity):
        raise Fault(f"{where}.invalidity: {str(invalidity)[:40]!r} is none of {', '.join(get_args(Invalidity))}")
    if invalidity != "correct":
        why = measured.get("reason", {}).get("value", "")
        return Failure(kind=invalidity, text=str(why)[:160] or str(invalidity))
    if OBJECTIVE in measured:
        time = measured[OBJECTIVE]
        if time.get("unit", "") not in _MS:
            raise Fault(f"{where}: the unit of `time` is {str(time['unit'])[:40]!r}", "convert it to milliseconds")
        return _ns(time.get("value"), f"{where}.measurements.time")
    runtimes = _item(result, "times", dict, f"{where}.").get("runtimes")
    if not isinstance(runtimes, list) or not runtimes:
        raise Fault(f"{where}: correct, with neither a measurement `time` nor times.runtimes")
    return statistics.fmean(_ns(time, f"{where}.times.runtimes") for time in runtimes)


def _measurements(result: Mapping[str, Any], where: str) -> dict[str, Mapping[str, Any]]:
    found = dict[str, Mapping[str, Any]]()
    for row in _item(result, "measurements", list, f"{where}.") if "measurements" in result else []:
        if not isinstance(row, dict) or not isinstance(row.get("name"), str):
            raise Fault(f"{where}.measurements: every one must be a table with a name")
        if row["name"] in found:
            raise Fault(f"{where}.measurements: {row['name'][:40]!r} comes twice")
        found[row["name"]] = row
    return found


def _value(value: object, where: str) -> ParamValue:
    # What becomes of which type of JSON is said in the docstring of `spaces`.
    if isinstance(value, (bool, int)):
        return int(value)
    if isinstance(value, float) and math.isfinite(value):
        return int(value) if value.is_integer() else repr(value)
    if isinstance(value, str):
        return value
    shown = f"{value} is" if isinstance(value, float) else f"a {_kind(value)} is"
    raise Fault(f"{where}: {shown} no value of a parameter", "use integers and texts")


def _present(table: Mapping[str, Any], key: str, where: str) -> Any:
    if key not in table:
        raise Fault(f"{where}: {key} is missing")
    return table[key]


def _item(table: Mapping[str, Any], key: str, kind: type, where: str = "") -> Any:
    if key not in table:
        raise Fault(f"{where}{key}: missing", _FORMATS)
    if not isinstance(table[key], kind):
        raise Fault(f"{where}{key}: a {_kind(table[key])} instead of a {'list' if kind is list else 'table'}", _FORMATS)
    return table[key]


def _text(table: Mapping[str, Any], key: str) -> str:
    value = table.get(key)
    return clean(value, 200) if isinstance(value, str) else ""


def _kind(value: object) -> str:
    names = {dict: "table", list: "list", str: "text", bool: "truth value", int: "number", float: "number"}
    return names.get(type(value), "null")
