"""What others publish of their formats, as JSON Schemas of our own wording, stricter where the source is silent.

T4: Kernel Tuner 1.4.0, kernel_tuner/schema/T4/1.0.0/{results,metadata}-schema.json: the same keys, types, required keys
and words of `invalidity`, and beyond it no key that the schema does not name. FlashInfer Trace: the pydantic models in
flashinfer_bench/data of flashinfer-ai/flashinfer-bench at revision 40e6ca78 (98 commits after v0.1.2), with what their
validators ask: `definition`, `solution`, `trace`.
"""

from __future__ import annotations

import ast
from pathlib import PurePosixPath
from typing import Any

from jsonschema import Draft202012Validator

TEXT: dict[str, Any] = {"type": "string"}
NAME: dict[str, Any] = {"type": "string", "minLength": 1}
NUMBER: dict[str, Any] = {"type": "number"}
VERSION: dict[str, Any] = {"type": "string", "pattern": r"^[0-9]+\.[0-9]+\.[0-9]+$"}


def table(required: dict[str, Any], optional: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """An object with these keys and no others."""
    properties = {**required, **(optional or {})}
    return {
        "type": "object",
        "properties": properties,
        "required": [*required],
        "additionalProperties": False,
        **more,
    }


def rows(of: dict[str, Any], least: int = 0) -> dict[str, Any]:
    return {"type": "array", "items": of, "minItems": least}


def mapping(of: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "propertyNames": NAME, "additionalProperties": of}


def maybe(of: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [of, {"type": "null"}]}


T4_RESULT = table(
    {
        "configuration": {"type": "object"},
        "times": table(
            {},
            {
                "compilation_time": NUMBER,
                "runtimes": rows({}),
                "framework": NUMBER,
                "search_algorithm": NUMBER,
                "validation": NUMBER,
            },
        ),
        "invalidity": {"enum": ["timeout", "compile", "runtime", "correctness", "constraints", "correct"]},
        "correctness": NUMBER,
    },
    {
        "timestamp": TEXT,
        "objectives": rows(TEXT),
        "measurements": rows(table({"name": TEXT, "value": {"type": ["number", "string", "array"]}, "unit": TEXT})),
    },
)
T4_RESULTS = table({"schema_version": VERSION, "results": rows(T4_RESULT)}, {"metadata": {"type": "object"}})
T4_METADATA = table(
    {
        "schema_version": VERSION,
        "metadata": table(
            {},
            {
                "zenodo": {"type": "object"},
                "hardware": table({}, {"hardware_description": rows({}), "operating_system": TEXT}),
                "environment": table({}, {"device_query": {"type": "object"}, "requirements": rows(TEXT)}),
            },
        ),
    }
)

FLASHINFER_DTYPES = [
    "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float4_e2m1",
    "int64", "int32", "int16", "int8", "bool",
]  # fmt: skip
AXIS = {
    "oneOf": [
        table({"type": {"const": "const"}, "value": {"type": "integer", "minimum": 0}}, {"description": TEXT}),
        table({"type": {"const": "var"}}, {"description": TEXT}),
    ]
}
TENSOR = table({"shape": maybe(rows(NAME)), "dtype": {"enum": FLASHINFER_DTYPES}}, {"description": TEXT})
DEFINITION = table(
    {
        "name": NAME,
        "op_type": NAME,
        "axes": mapping(AXIS),
        "inputs": mapping(TENSOR),
        "outputs": mapping(TENSOR),
        "reference": NAME,
    },
    {"tags": rows(NAME), "description": TEXT, "constraints": rows(NAME)},
)
SOLUTION = table(
    {
        "name": NAME,
        "definition": NAME,
        "author": NAME,
        "spec": table(
            {
                "language": {"enum": ["python", "triton", "cpp", "cuda", "tilelang"]},
                "target_hardware": rows(TEXT, least=1),
                "entry_point": {"type": "string", "pattern": r"^[^:]+::[^:]+$"},
            },
            {
                "dependencies": rows(NAME),
                "destination_passing_style": {"type": "boolean"},
                "binding": {"enum": ["tvm-ffi", "torch", None]},
            },
        ),
        "sources": rows(table({"path": NAME, "content": NAME}), least=1),
    },
    {"description": TEXT},
)
WORKLOAD = table(
    {
        "axes": mapping({"type": "integer", "minimum": 1}),
        "inputs": mapping(
            {
                "oneOf": [
                    table({"type": {"const": "random"}}),
                    table({"type": {"const": "scalar"}, "value": {"type": ["number", "boolean"]}}),
                    table({"type": {"const": "safetensors"}, "path": NAME, "tensor_key": NAME}),
                ]
            }
        ),
        "uuid": NAME,
    }
)
ERROR = {"anyOf": [{"type": "number", "minimum": 0}, {"enum": ["NaN", "Infinity"]}]}
CORRECTNESS = table({"max_relative_error": ERROR, "max_absolute_error": ERROR}, {"extra": maybe({"type": "object"})})
POSITIVE = {"type": "number", "minimum": 0}
PERFORMANCE = table({"latency_ms": POSITIVE, "reference_latency_ms": POSITIVE, "speedup_factor": POSITIVE})
NONE = {"type": "null"}


def when(statuses: list[str], correctness: dict[str, Any], performance: dict[str, Any]) -> dict[str, Any]:
    then = {"properties": {"correctness": correctness, "performance": performance}}
    return {"if": {"properties": {"status": {"enum": statuses}}}, "then": then}


FAILED = ["INCORRECT_SHAPE", "INCORRECT_DTYPE", "RUNTIME_ERROR", "COMPILE_ERROR", "TIMEOUT"]
EVALUATION = table(
    {
        "status": {"enum": ["PASSED", "INCORRECT_NUMERICAL", *FAILED]},
        "environment": table({"hardware": NAME, "libs": mapping(TEXT)}),
        "timestamp": NAME,
        "log": TEXT,
        "correctness": maybe(CORRECTNESS),
        "performance": maybe(PERFORMANCE),
    },
    allOf=[
        when(["PASSED"], CORRECTNESS, PERFORMANCE),
        when(["INCORRECT_NUMERICAL"], CORRECTNESS, NONE),
        when(FAILED, NONE, NONE),
    ],
)
TRACE = table({"definition": NAME, "workload": WORKLOAD, "solution": maybe(NAME), "evaluation": maybe(EVALUATION)})


def valid(data: Any, schema: dict[str, Any]) -> None:
    """Raises jsonschema.ValidationError for what the schema refuses."""
    Draft202012Validator.check_schema(schema)
    Draft202012Validator(schema).validate(data)


def definition(data: Any) -> None:
    """A definition: its schema, code with a top-level ``run`` of its inputs, known axes, names told apart."""
    valid(data, DEFINITION)
    (run,) = [n for n in ast.parse(data["reference"]).body if isinstance(n, ast.FunctionDef) and n.name == "run"]
    assert [arg.arg for arg in run.args.args] == [*data["inputs"]]
    assert not data["inputs"].keys() & data["outputs"].keys()
    for tensor in (*data["inputs"].values(), *data["outputs"].values()):
        assert set(tensor["shape"] or ()) <= data["axes"].keys()


def solution(data: Any, of: Any) -> None:
    """A solution of the definition `of`: its schema, relative paths told apart, an entry in one of its sources."""
    valid(data, SOLUTION)
    paths = [source["path"] for source in data["sources"]]
    assert len(paths) == len(set(paths))
    assert not [path for path in paths if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts]
    file, entry = data["spec"]["entry_point"].split("::")
    assert entry in next(source["content"] for source in data["sources"] if source["path"] == file)
    assert data["definition"] == of["name"]


def trace(data: Any, of: Any) -> None:
    """A trace or a workload of the definition `of`: its schema, every input and every variable axis, no others."""
    valid(data, TRACE)
    assert data["definition"] == of["name"]
    assert (data["solution"] is None) == (data["evaluation"] is None)
    assert data["workload"]["inputs"].keys() == of["inputs"].keys()
    assert data["workload"]["axes"].keys() == {name for name, axis in of["axes"].items() if axis["type"] == "var"}
