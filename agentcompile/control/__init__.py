"""Steering a run from outside: commands, when each is allowed, the socket that carries them, and who answers."""

from agentcompile.control.actions import ACTIONS, Action, Scene, action
from agentcompile.control.client import NoCompilerError, send
from agentcompile.control.commands import (
    Approve,
    ApproveSafe,
    Cancel,
    Command,
    Edit,
    Override,
    Pause,
    Reject,
    RejectRest,
    Reply,
    Rerun,
    Resume,
    Stop,
    Undo,
    Watch,
    WriteLock,
)
from agentcompile.control.desk import deliver, steered
from agentcompile.control.following import Follower
from agentcompile.control.sources import source_text

__all__ = [
    "ACTIONS",
    "Action",
    "Approve",
    "ApproveSafe",
    "Cancel",
    "Command",
    "Edit",
    "Follower",
    "NoCompilerError",
    "Override",
    "Pause",
    "Reject",
    "RejectRest",
    "Reply",
    "Rerun",
    "Resume",
    "Scene",
    "Stop",
    "Undo",
    "Watch",
    "WriteLock",
    "action",
    "deliver",
    "send",
    "source_text",
    "steered",
]
