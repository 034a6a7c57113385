"""Matrix products by cuBLASLt; each of its algorithms is a candidate of its own.

In: a region, and in its settings ALGO, the rank of an algorithm in the order of cuBLASLt's heuristic. Out: the operator
`linear` for that region. Every call writes a fresh tensor and takes its workspace from PyTorch's allocator, so that it
can be captured in a graph and graphs on several streams share no memory.

cuBLASLt is column-major, PyTorch row-major: what is [r, c] here is [c, r] there, so yᵀ = w·xᵀ is computed, with w
transposed. Values of enumerations and structures are those of cublasLt.h in cuBLAS 13.1.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from agentcompile.errors import AgentCompileError
from agentcompile.ir.graph import Use, concrete
from agentcompile.ir.region import Region
from agentcompile.ir.template import Params
from agentcompile.ops.reference import DTYPES, Operator, apply_views

ASKED = 8
"""The number of algorithms asked of the heuristic: the ranks that a template may name."""
WORKSPACE_BYTES = 32 << 20
"""The largest workspace of an algorithm: what NVIDIA recommends and PyTorch uses for Hopper."""
ALIGN_BYTES = 16
"""The alignment that algorithms may rely on.

Most buffers are aligned further, but with a fixed value a rank means the same algorithm wherever the buffers lie. An
operand that is aligned less is copied.
"""

_SUCCESS, _NOT_SUPPORTED = 0, 15
_COMPUTE_32F = 68
_R_32F = 0
_TYPES = {torch.float16: 2, torch.bfloat16: 14}
_OP_T = 1
_DESC_TRANSA, _DESC_EPILOGUE, _DESC_BIAS_POINTER = 3, 7, 8
_EPILOGUE_BIAS = 4
_PREF_MAX_WORKSPACE_BYTES, _PREF_REDUCTION_SCHEME_MASK = 1, 3
_PREF_MIN_ALIGNMENTS = (5, 6, 7, 8)
_REDUCTION_SCHEME_COMPUTE_TYPE = 2
_HINT = "leave the candidate out: other kernels and PyTorch serve the region too"


class _Result(ctypes.Structure):
    """The C structure `cublasLtMatmulHeuristicResult_t`."""

    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace_bytes", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


_P, _SIZE, _INT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
_ENTRIES: Mapping[str, tuple[Any, ...]] = {
    "cublasLtCreate": (_P,),
    "cublasLtMatmulDescCreate": (_P, _INT, _INT),
    "cublasLtMatmulDescSetAttribute": (_P, _INT, _P, _SIZE),
    "cublasLtMatmulDescDestroy": (_P,),
    "cublasLtMatrixLayoutCreate": (_P, _INT, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int64),
    "cublasLtMatrixLayoutDestroy": (_P,),
    "cublasLtMatmulPreferenceCreate": (_P,),
    "cublasLtMatmulPreferenceSetAttribute": (_P, _INT, _P, _SIZE),
    "cublasLtMatmulPreferenceDestroy": (_P,),
    "cublasLtMatmulAlgoGetHeuristic": (_P, _P, _P, _P, _P, _P, _P, _INT, _P, _P),
    "cublasLtMatmul": (_P, _P, _P, _P, _P, _P, _P, _P, _P, _P, _P, _P, _P, _P, _SIZE, _P),
}
"""Parameter types of the entry points that are called; all return a status."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MatmulProblem:
    """The shapes and type of x [tokens, hidden] times w [rows, hidden] transposed, with or without a bias [rows]."""

    tokens: int
    rows: int
    hidden: int
    dtype: torch.dtype
    biased: bool

    def __str__(self) -> str:
        name = str(self.dtype).removeprefix("torch.")
        return f"[{self.tokens}, {self.hidden}] x [{self.rows}, {self.hidden}]ᵀ in {name}"


class Lt:
    """cuBLASLt on one device: `library` has its entry points, `stream` returns the stream to launch products on."""

    def __init__(self, library: ctypes.CDLL, stream: Callable[[], int]) -> None:
        self.stream = stream
        self._library = library
        try:
            for name, types in _ENTRIES.items():
                entry = getattr(library, name)
                entry.argtypes, entry.restype = types, _INT
            library.cublasLtGetStatusName.argtypes, library.cublasLtGetStatusName.restype = (_INT,), ctypes.c_char_p
        except AttributeError as error:
            raise AgentCompileError(
                f"{library._name}: {error}", hint="install a later cuBLAS, as PyTorch's wheels bring it"
            ) from error
        self.handle = self.make("cublasLtCreate")

    def call(self, name: str, *arguments: object, allowed: tuple[int, ...] = ()) -> int:
        """Call an entry point and return its status.

        Raises:
            AgentCompileError: the status is a failure and not one of those `allowed`.
        """
        status = int(getattr(self._library, name)(*arguments))
        if status not in (_SUCCESS, *allowed):
            said = self._library.cublasLtGetStatusName(status) or str(status).encode()
            raise AgentCompileError(f"{name}: {said.decode()}", hint=_HINT)
        return status

    def make(self, name: str, *arguments: object) -> ctypes.c_void_p:
        """Call an entry point that creates an object and return the object's pointer."""
        made = ctypes.c_void_p()
        self.call(name, ctypes.byref(made), *arguments)
        return made

    def set(self, what: str, made: ctypes.c_void_p, attribute: int, value: Any) -> None:
        """Set an attribute of an object; `value` has the type that cublasLt.h names for it."""
        self.call(f"cublasLt{what}SetAttribute", made, attribute, ctypes.byref(value), ctypes.sizeof(value))


class Product:
    """One problem with its descriptors and the algorithm of one rank; not for two threads at once."""

    def __init__(self, lt: Lt, problem: MatmulProblem, rank: int) -> None:
        kind = _TYPES.get(problem.dtype)
        if kind is None:
            raise AgentCompileError(f"cublaslt.linear: {problem}: not of a 16-bit type", hint=_HINT)
        self._lt, self._problem = lt, problem
        self._one, self._zero = ctypes.c_float(1.0), ctypes.c_float(0.0)
        made: list[tuple[str, ctypes.c_void_p]] = []
        weakref.finalize(self, _destroy, lt, made).atexit = False  # at exit the device may be gone
        self._desc = _owned(lt, made, "MatmulDesc", _COMPUTE_32F, _R_32F)
        lt.set("MatmulDesc", self._desc, _DESC_TRANSA, ctypes.c_int32(_OP_T))
        if problem.biased:
            lt.set("MatmulDesc", self._desc, _DESC_EPILOGUE, ctypes.c_uint32(_EPILOGUE_BIAS))
            # The heuristic takes only the alignment from this pointer and never dereferences it.
            self._point_at_bias(ALIGN_BYTES)
        columns = {"w": problem.rows, "x": problem.tokens, "y": problem.tokens}
        heights = {"w": problem.hidden, "x": problem.hidden, "y": problem.rows}
        self._layouts = {
            name: _owned(lt, made, "MatrixLayout", kind, heights[name], columns[name], heights[name]) for name in "wxy"
        }
        results, count = self._ranked()
        found = [result for result in results[:count] if result.state == _SUCCESS]
        if rank >= len(found):
            text = f"cublaslt.linear: ALGO = {rank}: cuBLASLt has {len(found)} algorithms for {problem}"
            raise AgentCompileError(text, hint=_HINT)
        self._chosen = found[rank]

    @property
    def workspace_bytes(self) -> int:
        """The bytes of workspace that the algorithm needs beside the operands."""
        return int(self._chosen.workspace_bytes)

    def run(self, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None) -> torch.Tensor:
        """Launch the product of dense operands on the current stream and return y [tokens, rows]."""
        y = x.new_empty(self._problem.tokens, self._problem.rows)
        # A new workspace per call: one shared by all calls would be written from two streams at once.
        workspace = x.new_empty(self.workspace_bytes, dtype=torch.uint8) if self.workspace_bytes else None
        if b is not None:
            self._point_at_bias(b.data_ptr())
        of, out = self._layouts, (y.data_ptr(), self._layouts["y"])
        factors = (ctypes.byref(self._one), w.data_ptr(), of["w"], x.data_ptr(), of["x"])
        room = (0 if workspace is None else workspace.data_ptr(), self.workspace_bytes)
        results = (ctypes.byref(self._zero), *out, *out, ctypes.byref(self._chosen.algorithm))
        self._lt.call("cublasLtMatmul", self._lt.handle, self._desc, *factors, *results, *room, self._lt.stream())
        return y

    def _point_at_bias(self, address: int) -> None:
        self._lt.set("MatmulDesc", self._desc, _DESC_BIAS_POINTER, ctypes.c_void_p(address))

    def _ranked(self) -> tuple[ctypes.Array[_Result], int]:
        """Return the heuristic's results, fastest estimated time first, and their number."""
        lt, of, own = self._lt, self._layouts, list[tuple[str, ctypes.c_void_p]]()
        try:
            preference = _owned(lt, own, "MatmulPreference")
            wanted = {
                _PREF_MAX_WORKSPACE_BYTES: ctypes.c_uint64(WORKSPACE_BYTES),
                # Partial sums of a split k stay in float32: other schemes round each of them to the result's type.
                _PREF_REDUCTION_SCHEME_MASK: ctypes.c_uint32(_REDUCTION_SCHEME_COMPUTE_TYPE),
                **{at: ctypes.c_uint32(ALIGN_BYTES) for at in _PREF_MIN_ALIGNMENTS},
            }
            for attribute, value in wanted.items():
                lt.set("MatmulPreference", preference, attribute, value)
            results, count = (_Result * ASKED)(), ctypes.c_int()
            problem = (lt.handle, self._desc, *(of[name] for name in "wxyy"), preference)
            found = (ASKED, results, ctypes.byref(count))
            lt.call("cublasLtMatmulAlgoGetHeuristic", *problem, *found, allowed=(_NOT_SUPPORTED,))
        finally:
            _destroy(lt, own)
        return results, count.value


def _owned(lt: Lt, made: list[tuple[str, ctypes.c_void_p]], what: str, *arguments: int) -> ctypes.c_void_p:
    """Create an object and note it in `made`, whose objects are destroyed later."""
    made.append((what, lt.make(f"cublasLt{what}Create", *arguments)))
    return made[-1][1]


def _destroy(lt: Lt, made: list[tuple[str, ctypes.c_void_p]]) -> None:
    while made:
        what, pointer = made.pop()
        lt.call(f"cublasLt{what}Destroy", pointer)


class Linear:
    """The operator `linear` computed by the algorithm of one rank; not for two threads at once.

    x [..., hidden], w [rows, hidden] and b [rows] of one 16-bit type -> [..., rows], summed in float32 and rounded
    once.
    """

    def __init__(self, lt: Lt, rank: int) -> None:
        self._lt, self._rank = lt, rank
        self._products: dict[MatmulProblem, Product] = {}

    def __call__(self, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None = None) -> torch.Tensor:
        """Compute `linear` of these operands.

        Raises:
            AgentCompileError: as for `prepare`, or when cuBLASLt refuses to run.
        """
        flat, dense = _aligned(x.reshape(-1, w.shape[1])), _aligned(w)
        bias = None if b is None else _aligned(b)
        y = self._product(_problem(flat, dense, bias)).run(flat, dense, bias)
        return y.view(*x.shape[:-1], w.shape[0])

    def prepare(self, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None = None) -> None:
        """Choose the algorithm for operands of these shapes; they may be meta tensors without memory.

        Raises:
            AgentCompileError: the operands have several types, or no algorithm has this rank.
        """
        self._product(_problem(x.reshape(-1, w.shape[1]), w, b))

    def _product(self, problem: MatmulProblem) -> Product:
        if problem not in self._products:
            self._products[problem] = Product(self._lt, problem, self._rank)
        return self._products[problem]


def _problem(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None) -> MatmulProblem:
    types = {one.dtype for one in (x, w, b) if one is not None}
    if len(types) > 1:
        names = ", ".join(sorted(str(one).removeprefix("torch.") for one in types))
        raise AgentCompileError(f"cublaslt.linear: operands of several types: {names}", hint=_HINT)
    return MatmulProblem(tokens=x.shape[0], rows=w.shape[0], hidden=w.shape[1], dtype=x.dtype, biased=b is not None)


def _aligned(operand: torch.Tensor) -> torch.Tensor:
    """Return the same values, dense and at an address aligned to `ALIGN_BYTES`, copied only if needed."""
    dense = operand.contiguous()
    return dense if dense.data_ptr() % ALIGN_BYTES == 0 else dense.clone()


def operators(region: Region, settings: Params, lt: Lt | None = None) -> Mapping[str, Operator]:
    """Return `linear` for `region` with every algorithm already chosen, by `lt` or else on the current device.

    Raises:
        AgentCompileError: ALGO is no rank, cuBLASLt is not there, or it has no algorithm of that rank.
    """
    linear = Linear(lt or _here(), rank_of(settings))
    table, tokens = region.body.table(), dict(region.dims).get("tokens", 1)

    def seen(use: Use) -> torch.Tensor:
        value = table[use.value]
        bare = torch.empty(concrete(value.shape, tokens), dtype=DTYPES[value.dtype], device="meta")
        return apply_views(bare, use.views, tokens)

    for node in region.body.nodes:
        if node.op == "linear":
            linear.prepare(*[seen(use) for use in node.inputs])
    return {"linear": linear}


def rank_of(settings: Params) -> int:
    """Return the rank that the setting ALGO names, 0 by default.

    Raises:
        AgentCompileError: ALGO is not a rank.
    """
    rank = dict(settings).get("ALGO", 0)
    if not isinstance(rank, int) or not 0 <= rank < ASKED:
        raise AgentCompileError(f"cublaslt.linear: ALGO = {rank} is unknown", hint=f"a number from 0 to {ASKED - 1}")
    return rank


def _here() -> Lt:
    if not torch.cuda.is_available():
        hint = "name a CUDA device: --target cuda:0"
        raise AgentCompileError("cublaslt.linear runs on CUDA devices alone", hint=hint)
    return _on_device(torch.cuda.current_device())


@functools.cache
def _on_device(device: int) -> Lt:
    with torch.cuda.device(device):
        torch.zeros(1, device="cuda")  # makes the device's context current in this thread: the handle belongs to it
        return Lt(find_library(), lambda: torch.cuda.current_stream(device).cuda_stream)


def find_library(
    maps: Path = Path("/proc/self/maps"),
    packages: Path = Path(torch.__file__).parents[1],
    major: str = (torch.version.cuda or "").partition(".")[0],
) -> ctypes.CDLL:
    """Load libcublasLt: the one PyTorch has loaded, else one of PyTorch's `packages`, else the system's.

    `maps` lists the files loaded into the process. `major` is the CUDA major version that PyTorch was built for.

    Raises:
        AgentCompileError: none can be loaded.
    """
    tried = []
    for name in dict.fromkeys(_names(maps, packages, major)):
        try:
            return ctypes.CDLL(name)
        except OSError as error:
            tried.append(f"{name}: {error}")
    # A user's error and not the machine's: other candidates do without the library, and a run goes on with them.
    text = f"libcublasLt cannot be loaded: {'; '.join(tried)}"
    raise AgentCompileError(text, hint="install PyTorch with CUDA, whose wheels bring it, or NVIDIA's nvidia-cublas")


def _names(maps: Path, packages: Path, major: str) -> Iterator[str]:
    with contextlib.suppress(OSError):
        lines = maps.read_text(encoding="utf-8", errors="replace").splitlines()
        mapped = [words[5] for line in lines if len(words := line.split(maxsplit=5)) == 6]
        yield from (path for path in mapped if Path(path).name.startswith("libcublasLt.so"))
    file = f"libcublasLt.so.{major}" if major else "libcublasLt.so"
    for pattern in ("nvidia/*/lib", "torch/lib"):
        yield from sorted(str(path) for path in packages.glob(f"{pattern}/{file}"))
    yield file
