"""The process that workers are forked from: an answer is taken for the question that it is of."""

from __future__ import annotations

import json
import socket

import pytest

from agentcompile.errors import AgentCompileError
from agentcompile.worker.zygote import Zygote


@pytest.mark.usefixtures("process_itself")
def test_the_answer_to_a_question_that_a_signal_ended_is_not_taken_for_the_next_one_s() -> None:
    zygote = Zygote(start_s=60)
    try:
        forsaken = {"op": "reap", "pid": 1, "number": 0}
        socket.send_fds(zygote._socket, [json.dumps(forsaken).encode()], [])
        with pytest.raises(AgentCompileError, match="ended: No child processes"):
            zygote.ended(1, 0.0)
    finally:
        zygote.close()
