"""How a written kernel is declared, called and restricted in each language: the part of a contract that any region has.

In: a region and a target. Out: JSON in words, with the generated head of the program text and a manifest to start from.
"""

from __future__ import annotations

from collections.abc import Mapping

from agentcompile.build.nvrtc import NVRTC_FLAGS
from agentcompile.build.toolchain import COMPILE_FLAGS
from agentcompile.catalog.aliases import KERNEL_FILES
from agentcompile.catalog.discover import MAX_SOURCE_BYTES
from agentcompile.check import WORKSPACE_LIMIT_BYTES
from agentcompile.check.rules import THREADS_PER_BLOCK
from agentcompile.check.text import ATTRIBUTES, HEADERS
from agentcompile.ir.attempt import WrittenLanguage
from agentcompile.ir.digest import Json
from agentcompile.ir.region import Region
from agentcompile.ir.scope import region_dtype
from agentcompile.ir.target import Target, most_shared_bytes
from agentcompile.ir.template import Launch, Template
from agentcompile.materialize import PROLOGUES
from agentcompile.materialize.specialise import FLAGS

ENTRY = "kernel_main"
"""The entry of the manifest that a contract shows."""
MANIFEST_KEYS: Mapping[str, str] = {
    "region": "the region's kind, as given here",
    "language": "as given here",
    "about": "one sentence: how it works and when it should win",
    "dtypes": "the weight dtypes that it serves, of bf16, fp16, fp32",
    "kernel": "leave it out",
    "arch": "what the kernel cannot do without, of the machine: instruction sets (C++), or CUDA architectures",
    "phases": "decode, prefill, or both",
    "tokens": "[least, most] sequences of one decode step, with a token of each",
    "accumulation": "float32 (default), float64, or bf16x2: how sums are kept; it decides c of the tolerance",
    "deterministic": "true (default): the same bits every time",
    "requires": "an array of expressions that must hold; it may be empty",
    "rounds": "an array of [value, dtype]: values between the operators, or softmax weights, that are kept narrower "
    "than float32",
    "call": "leave it out",
    "layouts": "the layout of port families, for weights and states; what is not named is row-major",
    "params": "constants in capitals: name, domain (whole numbers), default (one of them) and about; optional",
    "workspaces": "scratch that all ranks see: name, dtype (fp32, int64, int32, bf16), count (an expression, elements) "
    'and initial ("undefined", or "zero": zeros before the first step, and every step leaves zeros); optional',
    "launch": "the launches in their order, each with entry and arguments; see `launch_keys`",
    "dtype": "leave it out",
}
"""Every key of a manifest, and what it takes."""
_LAUNCH: Mapping[str, str] = {
    "entry": "the function's name; it must not be a name of the head",
    "arguments": "port families and workspaces, each once, in the order of the struct's members",
    "in_place": "optional pairs [output, activation] that may share a buffer: a thread reads its part before it writes "
    "there, and no other thread reads what it writes",
}
_ARCH: Mapping[WrittenLanguage, str] = {
    "cpp": "instruction sets that the kernel cannot do without, spelled as in machine.isa (avx2, fma): a machine that "
    "lacks one refuses it. It turns nothing on: all of machine.isa is on by the flags. An empty list is right for most",
    "cuda": "CUDA architectures of which the machine must be one, spelled as machine.arch (sm_90a); empty for any",
    "triton": "CUDA architectures of which the machine must be one, spelled as machine.arch (sm_90a); empty for any",
}
_DEVICE: Mapping[str, str] = {
    "grid": "one to three expressions: blocks",
    "block": "one to three expressions: threads of a block",
    "shared_bytes": "CUDA C++ alone: an expression, dynamic shared memory of a block in bytes",
    "cluster": "CUDA C++ alone: blocks of a cluster, as expressions; leave it out for none",
    "pdl": "true for a launch that may start before the one before it ends",
    "early": "arguments that a launch with pdl reads before it waits",
}
_EXPRESSIONS = "whole numbers, names, + - * // %, comparisons, and or not, x if c else y, min max ceil_div round_up"
_ALWAYS = [
    "every port family of the region is an argument of some launch, and every workspace too",
    "every buffer is dense, and begins at a multiple of {align} bytes; no two arguments overlap",
    "every element of every output is written by each step; what outputs and undefined workspaces held means nothing",
    "inputs, weights and states are not changed{append}",
    "a step is all launches in their order; it keeps nothing for the next step, and its launches share workspaces",
    "results depend on the arguments alone: no clock, no random number, no count of calls, no address",
]
_NUMBERED = (
    ", [i] those of the i-th of numbered ports; a family with numbered ports (w.0, w.1) is an array of pointers in "
    "that order, any other is one pointer"
)
_CPP = [
    "every one of `threads` threads calls the entry, with its rank from 0 on and size = threads; it does its own part",
    "the struct of an entry E is called E_args and made from the arguments of its launch: member x points to x_t, "
    "const where it is only read; a workspace is a pointer to float, int64_t, int32_t or bf16, as its dtype says",
    "x_numel[0] is the number of elements of port x, x_rows[0] its first extent{numbers}",
    "after each launch all threads meet at a barrier; inside a launch no thread waits for another, since ranks may "
    "also run one after another in any order",
    "no atomics: no two ranks write to one element in a launch. What ranks summed in part goes to a workspace, a slot "
    "for each, and a later launch adds the slots in a fixed order",
    # An empty kernel of two launches takes 0.19 us, of one 0.05 (AVX2 EPYC, 2 threads with cores of their own).
    "a launch with its barrier costs about 0.1 us beside its work where two threads have cores of their own, and more "
    "with more threads; the slowest rank decides, so share the work evenly",
    "variables outside of functions and static ones are const; small arrays may be local, large ones are workspaces",
    "bf16 and fp16 are structs with the member `bits`; the skeleton shows how to widen and round them",
    "the order of floating-point operations is kept (no -ffast-math) and exp, tanh and erf are calls for one number "
    "each: vector code for sums and such functions has to be written, by intrinsics, types with vector_size, or "
    "several sums side by side",
    "a launch of C++ has entry, arguments and in_place alone: no grid and no block",
]
_CUDA = [
    "the argument struct is passed by value, as __grid_constant__; there are pointers in it and nothing else",
    "grid and block have one to three extents, shared_bytes is dynamic shared memory; all are expressions",
    "launches of a step run in order on one stream, and each sees all writes of those before it",
    "with pdl = true a launch may start before the one before it ends: it then executes griddepcontrol.wait before it "
    "reads what is not named in `early`; leave pdl out otherwise",
    "there is no header to include: NVRTC's own intrinsics are there, the types int64_t, int32_t, uint8_t, uint16_t, "
    "bf16 and fp16 (structs with the member `bits`) and INFINITY are declared",
]
_TRITON = [
    "the file holds functions decorated with @triton.jit and constants NAME = tl.constexpr(...) alone; no import",
    "the entry's parameters are exactly the launch's arguments, by name and in order; a family with numbered ports is "
    "a tuple of pointers",
    "grid has one to three extents, block is one: 32 times the number of warps, a power of two",
    "a parameter NUM_STAGES sets how deep Triton pipelines loops; other parameters are module constants",
]
_FORBIDDEN: dict[WrittenLanguage, list[Json]] = {
    "cpp": [
        f"headers other than {', '.join(f'<{name}>' for name in HEADERS)}, and #include of quoted names",
        "heap, files, threads, processes, sockets, signals, environment, exit and abort, thread_local, goto, dlopen",
        "std:: containers but array and span, streams, threads, atomics, strings; new and delete; exceptions and RTTI",
        "`extern` other than the definition of an entry; using-declarations of std",
        "assembly that leaves the kernel (call, jmp, syscall, ret) or reads clocks, random numbers or the core",
        "attributes that run code or replace functions. Allowed are alignas, __restrict__ and the attributes "
        f"{', '.join(sorted(ATTRIBUTES))}",
        "pragmas other than GCC unroll, ivdep, optimize and target",
        "## in macros, trigraphs, digraphs, raw strings",
    ],
    "cuda": [
        "#include of anything",
        "clock, globaltimer, %smid, %warpid and other values that differ between launches",
        "assembly with call, brx, ret, exit, trap, or with directives other than .reg",
        "printf, malloc, device-side launches; ## in macros, trigraphs, digraphs, raw strings",
    ],
    "triton": [
        "imports, classes, lambdas, comprehensions of sets and dicts, try, with, f-strings, global",
        "names that begin with two underscores, attributes that begin with one, Python's builtins such as print",
        "inline assembly that is not a literal text, or leaves the kernel",
    ],
}
_SIGNATURE: dict[WrittenLanguage, str] = {
    "cpp": f'extern "C" void {ENTRY}(const {ENTRY}_args& a, int rank, int size)',
    "cuda": f'extern "C" __global__ void {ENTRY}(const __grid_constant__ {ENTRY}_args a)',
    "triton": f"@triton.jit\ndef {ENTRY}({{arguments}}):",
}
_RULES: dict[WrittenLanguage, list[str]] = {"cpp": _CPP, "cuda": _CUDA, "triton": _TRITON}
_ALIGN: dict[WrittenLanguage, int] = {"cpp": 64, "cuda": 16, "triton": 16}
_GEOMETRY = '\ngrid = ["threads"]\nblock = ["256"]'
ANSWERED = ("layouts", "params", "workspaces", "requires", "arch", "accumulation", "rounds", "launch")
"""The keys of a manifest that an answer has; the others are written for it."""
_WIDE_BF16 = """\
static inline float widened(bf16 x) {
    const uint32_t bits = uint32_t(x.bits) << 16;
    float y;
    std::memcpy(&y, &bits, sizeof y);
    return y;
}
static inline bf16 rounded(float x) {  // to nearest even; NaN stays NaN
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    if (x != x) return bf16{0x7fc0};
    return bf16{uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};
}
"""
_WIDE_FP16 = """\
static inline float widened(fp16 x) {
    _Float16 y;
    std::memcpy(&y, &x.bits, sizeof y);
    return float(y);
}
static inline fp16 rounded_fp16(float x) {
    const _Float16 y = _Float16(x);
    fp16 z;
    std::memcpy(&z.bits, &y, sizeof y);
    return z;
}
"""


def skeleton(region: Region, language: WrittenLanguage) -> Template:
    """Return a template of one launch that passes every port of `region`; its kernel is empty."""
    batch = region.regime.batch
    on_device = language != "cpp"
    return Template(
        id=f"{region.kind}/written",
        region=region.kind,
        language=language,
        about="skeleton",
        dtypes=(region_dtype(region),),
        phases=(region.regime.phase,),
        tokens=(batch, batch),
        launches=(
            Launch(
                entry=ENTRY,
                arguments=_families(region),
                grid=("threads",) if on_device else (),
                block=("256",) if on_device else (),
            ),
        ),
        source_name=KERNEL_FILES[language],
    )


def calling(region: Region, language: WrittenLanguage, target: Target) -> dict[str, Json]:
    """Return how a kernel is called in `language`: signature, generated head, rules, limits."""
    made = skeleton(region, language)
    appends = any(port.access == "append" for port in region.ports)
    numbered = any(port.family != port.name for port in region.ports)
    facts = {
        "align": str(_ALIGN[language]),
        "append": ", except for the slots that the operators append" if appends else "",
        "numbers": _NUMBERED if numbered else "",
    }
    rules = [text.format_map(facts) for text in (*_ALWAYS, *_RULES[language])]
    limits: dict[str, Json] = {
        "kernel_characters": MAX_SOURCE_BYTES,
        "workspace_bytes": WORKSPACE_LIMIT_BYTES,
    }
    if language != "cpp":
        limits |= {"threads_a_block": THREADS_PER_BLOCK, "shared_bytes_a_block": most_shared_bytes(target.arch)}
    own = COMPILE_FLAGS if language == "cpp" else NVRTC_FLAGS if language == "cuda" else ()
    return {
        "entry": _SIGNATURE[language].format(arguments=", ".join(_families(region))),
        "rules": list(rules),
        "skeleton": skeleton_text(region, language),
        "head_of_the_program": PROLOGUES[language](made, region, (), target),
        "head_note": "Generated in front of the kernel file, here for the manifest to start from; the argument "
        "struct of each entry follows from its launch. Parameters are added as constants under their names. Declare "
        "none of these again. The skeleton, behind it, compiles and computes nothing.",
        "flags": [*own, *FLAGS[language](target)],
        "limits": limits,
    }


def manifest(region: Region, language: WrittenLanguage) -> dict[str, Json]:
    """Return the keys of a manifest, a whole one to start from, and the ``template.toml`` that it becomes."""
    made = skeleton(region, language)
    on_device = language != "cpp"
    device: dict[str, Json] = {
        "grid": ["threads"],
        "block": ["256"],
        "shared_bytes": 0,
        "cooperative": False,
        "cluster": [],
        "pdl": False,
        "early": [],
    }
    launch: Json = {
        "entry": ENTRY,
        "arguments": [*_families(region)],
        **(device if on_device else {}),
        "in_place": [],
    }
    lists: dict[str, Json] = {key: [] for key in ANSWERED}
    arguments = ", ".join(f'"{name}"' for name in _families(region))
    text = f'''region = "{region.kind}"
language = "{language}"
about = "one sentence on how it works and when it should win"
dtypes = ["{made.dtypes[0]}"]
phases = ["{made.phases[0]}"]
tokens = [{made.tokens[0]}, {made.tokens[1]}]

[[launch]]
entry = "{ENTRY}"
arguments = [{arguments}]{"" if language == "cpp" else _GEOMETRY}
'''
    return {
        "answer": lists | {"accumulation": "float32", "launch": [launch]},
        "keys": {key: MANIFEST_KEYS[key] if key != "arch" else _ARCH[language] for key in ANSWERED},
        "launch_keys": {**_LAUNCH, **(_DEVICE if on_device else {})},
        "expressions": _EXPRESSIONS,
        "example": text,
    }


def skeleton_text(region: Region, language: WrittenLanguage) -> str:
    """Return the text of a kernel that is called as the example says, and computes nothing."""
    entry = _SIGNATURE[language].format(arguments=", ".join(_families(region)))
    if language == "triton":
        return f"{entry}\n    block = tl.program_id(0)\n"
    if language == "cuda":
        return f"{entry} {{\n    const long at = long(blockIdx.x) * blockDim.x + threadIdx.x;\n}}\n"
    dtypes = {port.dtype for port in region.ports}
    made = next(port.family for port in region.ports if port.access != "read")
    return (
        f"{_WIDE_BF16 if 'bf16' in dtypes else ''}{_WIDE_FP16 if 'fp16' in dtypes else ''}{entry} {{\n"
        f"    const long begin = {made}_numel[0] * rank / size, end = {made}_numel[0] * (rank + 1) / size;\n"
        f"    for (long i = begin; i < end; ++i) {{\n"
        f"        // element i of a.{made} is this rank's; whole rows or blocks may suit better\n"
        "    }\n}\n"
    )


def forbidden(language: WrittenLanguage) -> list[Json]:
    """Return what a kernel's text must not hold; most of it the static check refuses by name."""
    return list(_FORBIDDEN[language])


def _families(region: Region) -> tuple[str, ...]:
    return tuple(dict.fromkeys(port.family for port in region.ports))
