"""Checks a Triton text: only Triton functions and constants, so that executing the text runs nothing of its own.

Triton compiles the bodies of functions from their text and evaluates parts of it in Python; Python executes the
statements around them. This is a lint and not a security barrier (`check.text`).
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator, Mapping

from agentcompile.check.text import instructions

MODULES = ("triton", "triton.language")
_MOST = 20
"""Most findings of one text; more would add nothing new."""
_OF_TRITON = ("jit", "cdiv", "next_power_of_2", "language")
_INSIDE = frozenset({"core", "semantic", "standard", "target_info", "constexpr_type", "sys", "builtins", "ir"})
"""Modules and internals of Triton's language package that no kernel names."""
_PYTHON = frozenset({
    "getattr", "setattr", "delattr", "hasattr", "vars", "dir", "globals", "locals", "eval", "exec", "compile",
    "open", "input", "breakpoint", "type", "object", "super", "classmethod", "staticmethod", "property",
    "memoryview", "callable", "print", "exit", "quit", "help", "id", "map", "filter", "iter", "next",
})  # fmt: skip
_NOT_TRITON = (
    ast.JoinedStr, ast.Lambda, ast.ClassDef, ast.AsyncFunctionDef, ast.Await, ast.Yield, ast.YieldFrom, ast.Try,
    ast.With, ast.Raise, ast.Global, ast.Nonlocal, ast.Delete, ast.ImportFrom, ast.GeneratorExp, ast.DictComp,
    ast.SetComp, ast.Starred, ast.NamedExpr, ast.Match,
)  # fmt: skip
_CONSTANT = (
    ast.Constant, ast.Name, ast.Tuple, ast.BinOp, ast.UnaryOp, ast.Compare, ast.BoolOp, ast.IfExp,
    ast.operator, ast.unaryop, ast.cmpop, ast.boolop, ast.expr_context,
)  # fmt: skip


def strays(texts: Mapping[str, str]) -> Iterator[str]:
    """Yield a finding for anything else in one of the texts, given by name: ``kernel.py:3: …``."""
    for name, text in texts.items():
        try:
            yield from list(itertools.islice(_found(name, ast.parse(text)), _MOST))
        except (SyntaxError, ValueError) as error:
            yield f"{name}:{getattr(error, 'lineno', None) or 1}: {getattr(error, 'msg', None) or error}"
        except (RecursionError, MemoryError):  # of the parser's own stack
            yield f"{name}:1: nested too deeply to be read"


def _found(name: str, tree: ast.Module) -> Iterator[str]:
    for statement in tree.body:
        if not _plain(statement):
            yield f"{name}:{statement.lineno}: neither a @triton.jit function nor a constant NAME = tl.constexpr(…)"
    for node in ast.walk(tree):
        yield from (f"{name}:{getattr(node, 'lineno', 1)}: {what}" for what in _odd(node))


def _odd(node: ast.AST) -> Iterator[str]:
    """Yield what Triton would evaluate in Python, or has no use for, at one node of a text."""
    match node:
        case ast.Attribute(attr=attr) if attr.startswith("_"):
            yield f"`.{attr}`: a kernel does not look inside Python's objects"
        case ast.Attribute(value=ast.Name(id="triton"), attr=attr) if attr not in _OF_TRITON:
            yield f"`triton.{attr}`: of triton a kernel uses {', '.join(_OF_TRITON)}"
        case ast.Attribute(value=ast.Name(id="tl"), attr=attr) if attr in _INSIDE:
            yield f"`tl.{attr}`: a kernel does not look inside Triton"
        case ast.Name(id=word) if word in _PYTHON or word.startswith("__"):
            yield f"`{word}`: a kernel does not reach into Python"
        case ast.Call(func=func) if ast.unparse(func).rpartition(".")[2] == "inline_asm_elementwise":
            yield from _assembly(node)
        case _ if isinstance(node, _NOT_TRITON):
            yield f"`{type(node).__name__}`: no part of Triton's language"
        case _:
            return


def _assembly(call: ast.Call) -> Iterator[str]:
    given = [*call.args[:1], *(one.value for one in call.keywords if one.arg == "asm" or one.arg is None)]
    match given:
        case [ast.Constant(value=str() as code)]:
            yield from (f"inline assembly: {what}" for what in instructions(code, host=False))
        case _:
            yield "inline assembly: its instructions are a text that stands there itself"


def _plain(node: ast.stmt) -> bool:
    """Return whether executing a statement of the module runs nothing but Triton's own `jit` and `constexpr`."""
    match node:
        case ast.Expr(value=ast.Constant(value=str())):
            return True
        case ast.Import(names=names):
            return all(alias.name in MODULES for alias in names)
        case ast.Assign(targets=[ast.Name()], value=ast.Call(func=func, args=[value], keywords=[])):
            return ast.unparse(func) == "tl.constexpr" and all(isinstance(part, _CONSTANT) for part in ast.walk(value))
        case ast.FunctionDef(decorator_list=[decorator], args=arguments):
            hints = [one.annotation for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
            shown = [hint for hint in (*hints, node.returns) if hint is not None]
            defaults = [*arguments.defaults, *(value for value in arguments.kw_defaults if value is not None)]
            return (
                ast.unparse(decorator) == "triton.jit"
                and all(ast.unparse(hint) == "tl.constexpr" for hint in shown)
                and all(isinstance(default, ast.Constant) for default in defaults)
            )
        case _:
            return False
