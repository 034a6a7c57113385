"""Static legality: a template or a point goes in, findings come out, before any compiler runs."""

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
