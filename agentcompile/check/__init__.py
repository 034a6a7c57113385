"""Static legality: a template or a point goes in, findings come out, before any compiler runs.

What the rules say of a source's text is a lint: it names what a kernel has no use for, to people and models that mean
well. It keeps nobody out who does not; isolation is the workers' part (`agentcompile.worker`), as far as it goes.
"""

from agentcompile.check.rules import (
    POINT_RULES,
    TEMPLATE_RULES,
    WORKSPACE_LIMIT_BYTES,
    LayoutFits,
    Subject,
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
    "Subject",
    "applicable",
    "check",
    "errors",
    "meant_for",
]
