"""What a Triton text may hold: functions for Triton and constants, so that executing it runs nothing of its own.

Triton compiles the bodies of functions from their text; Python executes what stands around them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

MODULES = ("triton", "triton.language")
_CONSTANT = (
    ast.Constant, ast.Name, ast.Tuple, ast.BinOp, ast.UnaryOp, ast.Compare, ast.BoolOp, ast.IfExp,
    ast.operator, ast.unaryop, ast.cmpop, ast.boolop, ast.expr_context,
)  # fmt: skip


def strays(texts: Mapping[str, str]) -> Iterator[str]:
    """Where one of the texts, by name, holds anything else: ``kernel.py:3: …``."""
    for name, text in texts.items():
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError) as error:
            yield f"{name}:{getattr(error, 'lineno', None) or 1}: {getattr(error, 'msg', None) or error}"
            continue
        for statement in tree.body:
            if not _plain(statement):
                yield f"{name}:{statement.lineno}: neither a @triton.jit function nor a constant NAME = tl.constexpr(…)"
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr.startswith("_"):
                yield f"{name}:{node.lineno}: `.{node.attr}`: a kernel does not look inside Python's objects"


def _plain(node: ast.stmt) -> bool:
    """Whether executing a statement of the module runs nothing but Triton's own `jit` and `constexpr`."""
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
