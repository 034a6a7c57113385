"""Static checks of a template or candidate before any compiler runs: findings come out.

The rules on a source's text are a lint: they name what a kernel has no use for, to well-meaning people and models. They
do not stop malicious code; isolation is the task of the workers (`agentcompile.worker`), as far as it goes.
"""

from agentcompile.check.rules import (
    POINT_RULES,
    TEMPLATE_RULES,
    WORKSPACE_LIMIT_BYTES,
    LayoutFits,
    RuleInput,
    applicable,
    check,
    errors,
    meant_for,
)

__all__ = [
    "POINT_RULES",
    "TEMPLATE_RULES",
    "WORKSPACE_LIMIT_BYTES",
    "LayoutFits",
    "RuleInput",
    "applicable",
    "check",
    "errors",
    "meant_for",
]
