"""The lockfile: choices for a model and a machine, with their evidence; read, written, checked for drift."""

from agentcompile.lockfile.drift import Drift, ModelFacts, drift
from agentcompile.lockfile.files import content_hash, read_lock, render_lock, reserve_lock, write_lock
from agentcompile.lockfile.order import ordered, regime_of
from agentcompile.lockfile.schema import (
    Evidence,
    Lock,
    LockChoice,
    LockModel,
    LockPlan,
    LockPolicy,
    LockTarget,
    ModelEvidence,
    RegionEvidence,
    StepEvidence,
)

__all__ = [
    "Drift",
    "Evidence",
    "Lock",
    "LockChoice",
    "LockModel",
    "LockPlan",
    "LockPolicy",
    "LockTarget",
    "ModelEvidence",
    "ModelFacts",
    "RegionEvidence",
    "StepEvidence",
    "content_hash",
    "drift",
    "ordered",
    "read_lock",
    "regime_of",
    "render_lock",
    "reserve_lock",
    "write_lock",
]
