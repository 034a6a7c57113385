"""Finds in the text of a C++ or CUDA kernel what a kernel has no use for, each on one line: ``kernel.cpp:3: …``.

This is a lint: it keeps honest authors and language models from writing kernels that are slow, fragile or not portable,
and says so before a compiler runs. It is not a security barrier: malicious text can compute an address and jump there,
and no list of words detects that. Untrusted kernels need a sandbox.

The text is read as a compiler reads it, after spliced lines are joined and comments dropped, because a word that is
split over two lines is still that word.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Collection, Iterator

HEADERS = (
    "algorithm", "arm_neon.h", "arm_sve.h", "array", "bit", "cfloat", "climits", "cmath", "concepts",
    "cstddef", "cstdint", "cstring", "functional", "immintrin.h", "initializer_list", "limits", "numeric",
    "span", "tuple", "type_traits", "utility", "x86intrin.h",
)  # fmt: skip
"""Headers that a C++ kernel may include; none opens files, starts threads or allocates."""

_CALLED = "abort|exit|_exit|open|close|read|write|send|signal|raise|kill|remove|rename|printf|puts|free"
"""Host functions whose names a kernel may use for its own purposes; only unqualified calls are reported."""
_NAMED = (
    "malloc|calloc|realloc|aligned_alloc|posix_memalign|alloca|mmap|munmap|mprotect|mremap|brk|sbrk|fopen|fdopen|freopen|"
    "openat|creat|unlink|system|v?fork|clone3?|exec[lv]p?e?|execveat|fexecve|popen|posix_spawnp?|socket|connect|dlopen|"
    "dlsym|dlmopen|dlvsym|dl_iterate_phdr|pthread_\\w+|getenv|setenv|putenv|secure_getenv|sigaction|sigprocmask|"
    "[_]*(?:sig)?(?:setjmp|longjmp)|atexit|on_exit|quick_exit|syscall|ptrace|prctl|ioctl|process_vm_\\w+|fprintf|"
    "clock_(?:gettime|nanosleep|getres|getcpuclockid)|gettimeofday|timespec_get|nanosleep|usleep|"
    "vprintf|thread_local|goto|__asm_label__|__libc_\\w+|_dl_\\w+|_GLOBAL_OFFSET_TABLE_|environ|__environ"
)
_STD = (
    "thread|jthread|async|vector|string|map|set|list|deque|mutex|atomic|[io]?fstream|cout|cerr|filesystem|system|"
    "unique_ptr|shared_ptr|make_unique|make_shared|allocator|locale|regex|random_device|terminate|getenv|exit|abort"
)
_WORDS = re.compile(
    rf"\b(?:__builtin_|std::|::){{0,2}}(?:{_NAMED})\b"
    rf"|(?<![.>\w:])(?:__builtin_)?(?:{_CALLED})[ \t\n]*\(|&[ \t\n]*(?:::)?(?:{_CALLED})\b"
    rf"|(?<![\w>])(?:std)?::(?:{_CALLED})\b"
    rf"|\bstd::(?:{_STD})\b|\b(?:new|delete)\b(?:[ \t\n]*\[\])?[ \t\n]*\(?[ \t\n]*\w"
)
ATTRIBUTES = frozenset({
    "access", "aligned", "alloc_align", "always_inline", "artificial", "assume", "assume_aligned", "cold", "const",
    "ext_vector_type", "fallthrough", "flatten", "gnu_inline", "hot", "internal_linkage", "likely", "may_alias",
    "maybe_unused", "no_unique_address", "nodiscard", "noescape", "noinline", "nonnull", "noreturn", "nothrow",
    "optimize", "packed", "preserve_none", "pure", "restrict", "returns_nonnull", "target", "unlikely", "unused",
    "vector_size", "visibility",
})  # fmt: skip
"""Attributes that control compilation or layout; others can make a function run by itself or replace another."""
_PRAGMAS = re.compile(
    r"(?:once|unroll|nounroll|omp simd|(?:GCC|clang) (?:unroll|ivdep|optimize|target|diagnostic|loop))\b"
)
_LITERAL = re.compile(
    r'(?P<raw>\b(?:u8|[uUL])?R"(?P<mark>[^\s()\\]{0,16})\((?:.|\n){0,300}?\)(?P=mark)")'
    r'|(?P<text>"(?:[^"\\\n]|\\.)*")|(?P<char>\'(?:[^\'\\\n]|\\.)*\')'
    r"|(?P<comment>/\*(?:.|\n)*?(?:\*/|\Z)|//[^\n]*)|(?P<number>\b\d[\w.']*)"
)
_ASM = re.compile(
    r'\b(?:__asm__|__asm|asm)\b[\s\x00\w]{0,60}\((?P<code>(?:[\s\x00]*"(?:[^"\\\n]|\\.)*")+)[\s\x00]*[:)]'
)
_STRING = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
_LEAVES = re.compile(
    r"(?:syscall|sysenter|int|svc|hvc|smc|ecall|j\w+|l?call\w*|l?ret\w*|bl?r?|bx|blx|loop\w*|hlt|in|out|cli|sti|"
    r"wr(?:fs|gs)base|xend|ud2|brk|trap|brkpt|exit)\b"
)
"""Instructions that leave the kernel's own code."""
_MOMENTS = re.compile(
    r"\b(?:_*rdtscp?|_*rdpmc|_rd(?:rand|seed)\w*|_rdpid\w*|_*get_cpuid\w*|_*cpuid\w*|_read[fg]sbase\w*|"
    r"__builtin_(?:ia32_rd\w+|cpu_\w+|readcyclecounter|readsteadycounter|thread_pointer|return_address|frame_address|"
    r"extract_return_addr))\b|\b_*(?:clock(?:64|_hi)?|globaltimer\w*)[ \t\n]*\(\)"
)
"""Sources of values that differ between launches with equal inputs: clocks, random numbers, the core, the caller."""
_MOMENT = re.compile(r"(?:rdtscp?|rdpmc|rdrand|rdseed|rdpid|cpuid)\b|.*%(?:clock|globaltimer|smid|warpid)\w*")
"""Instructions that read such values."""
_PTX_LEAVES = re.compile(r"(?:call|brx|ret|exit|trap|brkpt)\b")


def mentions(name: str, text: str, shared: Collection[str], *, host: bool) -> tuple[str, ...]:
    """Return what a text mentions that a kernel has no use for, `_MOST` findings at most.

    `shared` names the texts that it may include. With `host` the text runs on the CPU, so that words of the host's
    library are reported too, and C functions that are no entries.
    """
    return _mentions(name, text, frozenset(shared), host)


@functools.lru_cache(maxsize=512)
def _mentions(name: str, text: str, shared: frozenset[str], host: bool) -> tuple[str, ...]:
    joined = _joined(text)
    bare = _LITERAL.sub(_without_comment, joined)
    plain = _LITERAL.sub(_without_text, bare)
    found = [
        _spellings(joined, bare, plain),
        _directives(bare, shared, host),
        _assembly(bare, plain, host),
        _moments(plain),
    ]
    if host:
        found += [_words(plain), _attributes(plain), _foreign(bare)]
    told = []
    for place, what in itertools.islice(itertools.chain(*found), _MOST):
        line = bare[:place].count(_SPLICE) + bare[:place].count("\n") + 1
        told.append(f"{name}:{line}: {what}")
    return tuple(told)


_SAME = "of the same inputs a kernel makes the same result, whenever and wherever it runs"
_MOST = 20
"""Most findings of one text; more would add nothing new."""
_NEAR = 500
"""Characters around a word that are read to classify it."""
_SPLICE = "\x00"
"""Replaces the end of a line that was joined with the next one, so that lines can be counted."""


def _joined(text: str) -> str:
    """Join spliced lines; a mark for each removed line end follows the word that it split."""
    text = text.replace("\r\n", "\n").replace(_SPLICE, " ")
    return re.sub(r"(?<!\w)(\w*)((?:\\[ \t]*\n\w*)+)", _moved, text)


def _moved(match: re.Match[str]) -> str:
    tail, count = re.subn(r"\\[ \t]*\n", "", match[2])
    return match[1] + tail + _SPLICE * count


def _without_comment(match: re.Match[str]) -> str:
    """Return a match with a comment replaced by blanks, with its length unchanged."""
    return _blank(match[0]) if match["comment"] is not None else match[0]


def _without_text(match: re.Match[str]) -> str:
    """Return a match with a literal's characters replaced by blanks, with its length unchanged."""
    if match["number"] is not None:
        return match[0]
    return "".join(c if c in ('"', "'", "\n", _SPLICE) else " " for c in match[0])


def _blank(text: str) -> str:
    return "".join(c if c in ("\n", _SPLICE) else " " for c in text)


def _spellings(joined: str, bare: str, plain: str) -> Iterator[tuple[int, str]]:
    """Yield ways of writing that hide what is written."""
    for match in re.finditer(r"\?\?[=/'()!<>-]", bare):
        yield match.start(), f"`{match[0]}`: no trigraphs"
    for match in re.finditer(r"\?\?/[ \t]*\n", joined):
        yield match.start(), "`??/`: no trigraphs"
    for match in re.finditer(r"%:|<%|%>|<:(?!:)|(?<!:):>", plain):
        yield match.start(), f"`{match[0]}`: no digraphs"
    for match in re.finditer(r"##", plain):
        yield match.start(), "`##`: no words are made of parts"
    for match in re.finditer(r"\\", plain):
        yield match.start(), "`\\`: no character is written by its number outside a text"
    for match in re.finditer(r'\b(?:u8|[uUL])?R"', bare):
        yield match.start(), "no raw strings"


def _directives(bare: str, shared: Collection[str], host: bool) -> Iterator[tuple[int, str]]:
    for match in re.finditer(r"^[ \t\x00]*#[ \t\x00]*(\w*)([^\n]*)", bare, re.MULTILINE):
        word, rest = match[1], match[2].replace(_SPLICE, "").strip()
        if word in ("include_next", "import", "embed"):
            yield match.start(), f"`#{word}`: only #include"
        elif word == "include":
            yield from ((match.start(), what) for what in _included(rest, shared, host))
        elif word == "pragma" and not _PRAGMAS.match(rest):
            yield match.start(), f"`#pragma {rest}`: no pragma that a kernel needs"
    for match in re.finditer(r"\b__has_(?:include|embed)\w*", bare):
        yield match.start(), f"`{match[0]}`: a kernel does not ask what the machine has"
    for match in re.finditer(r"\b_Pragma[^\n)]*", bare):
        yield match.start(), "`_Pragma`: write #pragma"
    for match in re.finditer(r"^[ \t]*(?:export[ \t]+)?(?:import|module)\b", bare, re.MULTILINE):
        yield match.start(), "no modules"


def _included(rest: str, shared: Collection[str], host: bool) -> Iterator[str]:
    if (quoted := re.fullmatch(r'"([^"]*)"', rest)) is not None:
        if quoted[1] not in shared:
            yield f'includes "{quoted[1]}", which is no shared text of the templates'
    elif (angle := re.fullmatch(r"<([^>]*)>", rest)) is not None:
        if host and angle[1] not in HEADERS:
            yield f"includes <{angle[1]}>; allowed: {', '.join(HEADERS)}"
        elif angle[1].startswith("/") or ".." in angle[1]:
            yield f"includes <{angle[1]}>, which is a path"
    else:
        yield f"`#include {rest}`: the name of what is included stands there itself"


def _assembly(bare: str, plain: str, host: bool) -> Iterator[tuple[int, str]]:
    """Yield inline assembly that leaves the kernel, contains more than instructions, or cannot be read here."""
    code = re.sub(r"^[ \t]*#[^\n]*", lambda found: " " * len(found[0]), plain, flags=re.MULTILINE)
    for match in re.finditer(r"\b(?:__asm__|__asm|asm)\b", plain):
        found = _ASM.match(bare, match.start())
        if not _begins_a_statement(code[max(match.start() - _NEAR, 0) : match.start()]):
            yield match.start(), "`asm`: a statement of its own, and no declaration's other name"
        elif found is None:
            yield match.start(), "`asm`: its instructions are texts that stand there themselves"
        else:
            text = "".join(_STRING.findall(found["code"]))
            yield from ((match.start(), f"`asm`: {what}") for what in instructions(text, host=host))


def _begins_a_statement(before: str) -> bool:
    """Return whether the text after `before` begins a statement; an asm label follows a declaration instead."""
    before = before.replace(_SPLICE, " ").rstrip()
    if not before.endswith(")"):
        return not before or before[-1] in ";{}:" or re.search(r"\b(?:else|do)\Z", before) is not None
    depth = 0
    for place in range(len(before) - 1, -1, -1):
        depth += {")": 1, "(": -1}.get(before[place], 0)
        if depth == 0:
            return re.search(r"\b(?:if|for|while|constexpr)\s*\Z", before[:place]) is not None
    return False


def instructions(code: str, *, host: bool) -> Iterator[str]:
    """Yield what the text of inline assembly (the host's, or PTX) does beyond computing."""
    if re.search(r"\\(?![nt])", code):
        yield "no character of an instruction is written by its number"
    for statement in re.split(r"[;\n{}]|\\[nt]", code):
        words = re.sub(r"^(?:\s*(?:@!?%?\w+|[\w$%]+:(?!:)|lock|rep\w*|notrack|bnd))*\s*", "", statement)
        if words.startswith(".") and not re.match(r"\.(?:reg|pred)\b", words):
            yield f"`{words.split()[0]}`: instructions alone, no directives"
        elif (left := (_LEAVES if host else _PTX_LEAVES).match(words)) is not None:
            yield f"`{left[0]}` leaves the kernel: a kernel does not call the host"
        elif (told := _MOMENT.match(words)) is not None:
            yield f"`{told[0].split()[-1]}`: {_SAME}"


def _moments(plain: str) -> Iterator[tuple[int, str]]:
    for match in _MOMENTS.finditer(plain):
        yield match.start(), f"`{match[0]}`: {_SAME}"


def _attributes(plain: str) -> Iterator[tuple[int, str]]:
    for match in re.finditer(r"\b__attribute(?:__)?[ \t\n]*\(\(|\[\[|\b__declspec\b", plain):
        end = plain.find("]]" if match[0] == "[[" else "))", match.end())
        if not 0 <= end - match.end() <= _NEAR:
            yield match.start(), "an attribute without an end nearby"
            continue
        inside, before = plain[match.end() : end].replace(_SPLICE, ""), ""
        while inside != before:
            before, inside = inside, re.sub(r"\([^()]*\)?", " ", inside)
        for word in re.findall(r"\w+", re.sub(r"\busing\s+\w+\s*:|\b\w+[ \t]*::", " ", inside)):
            if word.strip("_") not in ATTRIBUTES:
                yield (
                    match.start(),
                    f"attribute `{word}`: allowed are those that say how to compile: a kernel runs when it is called",
                )


def _words(plain: str) -> Iterator[tuple[int, str]]:
    for match in _WORDS.finditer(plain):
        word = " ".join(match[0].replace(_SPLICE, "").strip(" \t\n(&").split())
        yield match.start(), f"`{word}`: a kernel does not call the host"


def _foreign(bare: str) -> Iterator[tuple[int, str]]:
    """Yield functions from elsewhere that are declared, imported by name, or defined in place of the library's."""
    for match in re.finditer(r'\bextern\b\s*(?:"[^"\n]*"\s*)?(?P<rest>[^;{]{0,400})(?P<end>[;{]?)', bare):
        if match["end"] != "{" or "(" not in match["rest"]:
            yield match.start(), "`extern`: an entry is defined, nothing of others is declared"
        elif not re.search(r"\(\s*const\s+\w+_args\s*&", match["rest"]):
            yield match.start(), "`extern`: an entry takes its struct of arguments; nothing of the library is replaced"
    for match in re.finditer(r"\busing\s+namespace\s+std\b|\busing\s+(?:std)?::\w+", bare):
        yield match.start(), f"`{' '.join(match[0].split())}`: names of the library are written in full"
