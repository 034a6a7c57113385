"""The lint of kernel texts: the ways to reach the host that it knows, and what it must leave alone.

It is a lint: passing it proves nothing of a text that means harm.
"""

from __future__ import annotations

import pytest

from agentcompile.check.script import strays
from agentcompile.check.text import mentions

CALLS = {
    "a call": ('void f() { system("sh"); }', "`system`"),
    "a name that is passed on": ("auto f = &execve;", "`execve`"),
    "a name without a call": ("auto f = system;", "`system`"),
    "a name of the library's": ("auto f = std::system;", "system`"),
    "a compiler's name": ('void f() { __builtin_execl("sh", "sh", nullptr); }', "execl`"),
    "brackets around a name": ('void f() { (system)("sh"); }', "`system`"),
    "a name over two lines": ('void f() { sys\\\ntem("sh"); }', "1: `system`"),
    "a name over three lines with spaces": ('void f() { s\\ \nys\\\t\ntem("sh"); }', "1: `system`"),
    "a name with a comment behind it": ('void f() { system /* \n */ ("sh"); }', "`system`"),
    "what a string seems to open": ('const char* a = "/*"; void f() { system("sh"); } // */', "`system`"),
    "a raw string that hides a comment's end": ('const char* a = R"(/*)"; void f() { system("x"); }', "`system`"),
    "a word of two parts": ("#define CAT(a, b) a##b\nauto f = CAT(sys, tem);", "`##`"),
    "a word of two parts by digraphs": ("%:define CAT(a, b) a%:%:b\n", "`%:`"),
    "a trigraph": ("??=define CAT(a, b) a\n", "`??=`"),
    "a trigraph that joins lines": ("// why??/\nint x;", "1:"),
    "a character by its number": ("auto f = \\u0073ystem;", "`\\`"),
    "a computed include": ("#define H <cstdlib>\n#include H\n", "2: `#include H`"),
    "a header of the host's": ("#include <cstdlib>\n", "includes <cstdlib>"),
    "a path": ('#include "/etc/passwd"\n', "no shared text"),
    "a header over two lines": ("#include <cst\\\ndlib>\n", "includes <cstdlib>"),
    "the next header": ("#include_next <cstdio>\n", "only #include"),
    "a question about headers": ("#if __has_include(<unistd.h>)\n#endif\n", "`__has_include`"),
    "embedded data": ('#embed "/etc/passwd"\n', "only #include"),
    "a module": ("import <cstdlib>;\n", "no modules"),
    "a declaration": ('extern "C" int other(const char*);', "`extern`"),
    "declarations": ('extern "C" { int other(const char*); }', "`extern`"),
    "a variable of others": ("extern char** other;", "`extern`"),
    "another name for a function": ('int f(const char*) asm("system");', "no declaration's other name"),
    "another name for a variable": ('char** e __asm__("environ");', "no declaration's other name"),
    "a constructor": ("__attribute__((constructor)) static void f() {}", "attribute `constructor`"),
    "a constructor in underscores": (
        "__attribute__((__constructor__(101))) void f() {}",
        "attribute `__constructor__`",
    ),
    "a constructor in brackets": ("[[gnu::constructor]] void f() {}", "attribute `constructor`"),
    "a constructor by a using prefix": ("[[using gnu: constructor]] void f() {}", "attribute `constructor`"),
    "a destructor": ("__attribute__((aligned(4), destructor)) void f() {}", "attribute `destructor`"),
    "an alias": ('void f() __attribute__((alias("system")));', "attribute `alias`"),
    "a weak reference": ('static int f() __attribute__((weakref("system")));', "attribute `weakref`"),
    "a resolver": ('void f() __attribute__((ifunc("g")));', "attribute `ifunc`"),
    "a section": ('__attribute__((section(".init_array"))) void* p;', "attribute `section`"),
    "a cleanup": ("void f() { __attribute__((cleanup(g))) int x; }", "attribute `cleanup`"),
    "a pragma that renames": ("#pragma redefine_extname f system\n", "`#pragma redefine_extname"),
    "a pragma in code": ('_Pragma("weak f = system") void f();', "`_Pragma`"),
    "a system call": ('void f() { asm volatile("syscall"); }', "`syscall` leaves"),
    "a system call of two parts": ('void f() { asm volatile("sys" "call"); }', "`syscall` leaves"),
    "a system call by its bytes": ('void f() { asm(".byte 0x0f, 0x05"); }', "`.byte`"),
    "a system call by number": ('void f() { asm("\\x73yscall"); }', "by its number"),
    "a system call of old": ('void f() { asm("int $0x80"); }', "`int` leaves"),
    "a system call behind others": ('void f() { asm("nop; nop\\n\\tsyscall" ::: "memory"); }', "`syscall` leaves"),
    "a jump": ('void f() { asm("jmp *%0" :: "r"(p)); }', "`jmp` leaves"),
    "a call in assembly": ('void f() { asm("call system"); }', "`call` leaves"),
    "a file in assembly": ('asm(".incbin \\"/etc/passwd\\"");', "no character"),
    "a file in assembly without quotes": ("asm(\".incbin '/etc/passwd'\");", "`.incbin`"),
    "another section in assembly": ('asm(".pushsection .init_array");', "`.pushsection`"),
    "instructions from a macro": ('#define S "syscall"\nvoid f() { asm(S); }', "stand there themselves"),
    "a raw string of instructions": ('void f() { asm(R"(syscall)"); }', "no raw strings"),
    "the linker's function": ('auto f = dlsym(nullptr, "x");', "`dlsym`"),
    "the environment": ("auto e = __environ;", "`__environ`"),
    "names in bulk": ("using namespace std;", "written in full"),
    "a name by using": ("using std::f;", "written in full"),
}


MOMENTS = {
    "a clock": ("auto t = __rdtsc();", "`__rdtsc`"),
    "a compiler's clock": ("auto t = __builtin_ia32_rdtscp(&core);", "`__builtin_ia32_rdtscp`"),
    "chance": ("int f() { unsigned long long n; return _rdrand64_step(&n); }", "`_rdrand64_step`"),
    "who called": ("void* f() { return __builtin_return_address(0); }", "`__builtin_return_address`"),
    "a clock's instruction": ('void f() { asm volatile("rdtsc" : : : "eax", "edx"); }', "`rdtsc`"),
    "which processor": ('void f() { asm volatile("cpuid"); }', "`cpuid`"),
}
DEVICE_MOMENTS = {
    "a device's clock": ("__device__ long f() { return clock64(); }", "`clock64()`"),
    "a device's clock register": ('void f() { asm("mov.u64 %0, %%globaltimer;" : "=l"(t)); }', "`%%globaltimer`"),
}


@pytest.mark.parametrize("name", MOMENTS)
def test_what_differs_though_the_inputs_do_not_is_told(name: str) -> None:
    text, told = MOMENTS[name]
    assert any(told in line for line in mentions("kernel.cpp", text, (), host=True)), mentions(
        "kernel.cpp", text, (), host=True
    )


@pytest.mark.parametrize("name", DEVICE_MOMENTS)
def test_what_differs_on_a_device_is_told(name: str) -> None:
    text, told = DEVICE_MOMENTS[name]
    assert any(told in line for line in mentions("kernel.cu", text, (), host=False))


@pytest.mark.parametrize("name", CALLS)
def test_a_text_that_reaches_for_the_host_is_told_with_its_line(name: str) -> None:
    text, words = CALLS[name]
    found = list(mentions("kernel.cpp", text, {}, host=True))
    assert any(words in one for one in found), found
    assert all(one.startswith("kernel.cpp:") for one in found)


def test_a_c_function_that_is_no_entry_is_told() -> None:
    text = (
        'extern "C" void gemv(const gemv_args& a, int rank, int size) { }\nextern "C" int tanf(float) { return 0; }\n'
    )
    (found,) = mentions("kernel.cpp", text, (), host=True)
    assert found.startswith("kernel.cpp:2: `extern`: an entry takes its struct")


HARMLESS = {
    "words in comments": '// system(3) ## ??= \\u0073 malloc, R"(\n/* #include <cstdlib> asm("syscall") */\n',
    "words in texts": 'static_assert(sizeof(int) == 4, "no system() ## of asm");',
    "words in words": "int filesystem_open, my_exit(int); float reads(float x); void g() { a.open(3); p->close(); }",
    "a macro over lines": "#define LANES \\\n    16\nint x = LANES;\n",
    "numbers with marks": "long n = 1'000'000; long m = 2'000;",
    "a barrier for the compiler": 'void f() { asm volatile("" ::: "memory"); }',
    "instructions": 'void f() { for (;;) asm("vpaddd %1, %0, %0\\n\\tvmulps %1, %0, %0" : "+x"(a) : "x"(b)); }',
    "an entry": 'extern "C" void gemv(const gemv_args& a, int rank, int size) { }',
    "attributes": "typedef float v __attribute__((vector_size(64), __may_alias__)); [[gnu::always_inline]] int f();",
    "a pragma": "#pragma GCC unroll 8\n#pragma once\n",
    "a template's bracket": "B<::A> y;",
    "an index of an index": "int x = a[b[0]];",
    "a shared text": '#include "simd.h"\n',
}


@pytest.mark.parametrize("name", HARMLESS)
def test_what_only_looks_like_it_is_left_alone(name: str) -> None:
    assert list(mentions("kernel.cpp", HARMLESS[name], {"simd.h": ""}, host=True)) == []


PTX = {
    "a declaration": ('void f() { asm(".extern .func vprintf;"); }', "`.extern`"),
    "a call": ('void f() { asm("{ .reg .b32 r; call (r), malloc, (8); }"); }', "`call` leaves"),
    "a call under a predicate": ('void f() { asm("@p call f;"); }', "`call` leaves"),
    "a call behind a label": ('void f() { asm("L1: call f;"); }', "`call` leaves"),
    "a file": ("void f() { asm(\".file 1 'x'\"); }", "`.file`"),
    "an end": ('void f() { asm("exit;"); }', "`exit` leaves"),
    "a path": ('#include "/etc/passwd"\n', "no shared text"),
    "a system's path": ("#include </etc/passwd>\n", "which is a path"),
    "a computed include": ("#include H\n", "stands there itself"),
}


@pytest.mark.parametrize("name", PTX)
def test_a_device_text_that_does_more_than_compute_is_told(name: str) -> None:
    text, words = PTX[name]
    assert any(words in one for one in mentions("kernel.cu", text, {}, host=False))


def test_a_device_text_may_compute_branch_and_wait() -> None:
    text = (
        'void f() { asm volatile("{\\n\\t.reg .pred p;\\n\\tW: mbarrier.try_wait.b64 p, [%0];\\n\\t@!p bra W;\\n}"); }'
    )
    assert list(mentions("kernel.cu", text, {}, host=False)) == []


SCRIPTS = {
    "an attribute by name": ('getattr(tl, "_x")', "`getattr`"),
    "an import": ('__import__("os")', "`__import__`"),
    "a text that is computed": ('f"{x}"', "`JoinedStr`"),
    "a hidden attribute": ("x.__class__", "`.__class__`"),
    "a driver": ("triton.runtime.driver", "`triton.runtime`"),
    "Triton's insides": ("tl.core.builtin", "`tl.core`"),
    "an evaluation": ('eval("1")', "`eval`"),
    "a function without a name": ("(lambda: 0)()", "`Lambda`"),
    "assembly that is computed": ('tl.inline_asm_elementwise(x, "=r", [], tl.int32, True, 1)', "stands there itself"),
    "assembly that calls": ('tl.inline_asm_elementwise("call f;", "=r", [], tl.int32, True, 1)', "`call` leaves"),
    "assembly by keyword": ('tl.inline_asm_elementwise(asm=".extern .func f;")', "`.extern`"),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_triton_function_that_reaches_into_python_is_told(name: str) -> None:
    text, words = SCRIPTS[name]
    source = f"import triton\nimport triton.language as tl\n@triton.jit\ndef gemv(x):\n    y = {text}\n"
    found = list(strays({"kernel.py": source}))
    assert any(words in one for one in found), found
    assert all(one.startswith("kernel.py:5: ") for one in found)


@pytest.mark.parametrize("decorator", ["evil(triton.jit)", "triton.jit(fn=evil)", "print", "triton.jit\n@print"])
def test_a_decorator_other_than_jit_is_told(decorator: str) -> None:
    assert list(strays({"kernel.py": f"@{decorator}\ndef f(x):\n    pass\n"}))
