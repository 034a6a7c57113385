"""The vLLM arm beside a module that has vLLM's documented interface, in a process of its own, as it runs for real."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agentcompile.bench.harness.serving import ArmFailed, LiveArm, foreign_command
from agentcompile.bench.harness.trial import command_of, vllm_lacks
from agentcompile.bench.suite.run import _parse, _suite

from tests.cpu.trials import Commands, setup

TORCH = """
__version__ = "2.11.0"
class cuda:
    @staticmethod
    def get_device_properties(device):
        assert device == "cuda:0", device
        class found: total_memory = 80 << 30
        return found
    @staticmethod
    def is_available(): return False
"""
PARAMS = """
from enum import Enum
class RequestOutputKind(Enum):
    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2
"""
VLLM = '''
import os, random
from vllm.sampling_params import RequestOutputKind
__version__ = "0.26.0"

class SamplingParams:
    def __init__(self, *, temperature=1.0, top_p=1.0, max_tokens=16, ignore_eos=False, detokenize=True,
                 output_kind=RequestOutputKind.CUMULATIVE, logprobs=None, seed=None):
        self.__dict__.update(locals())

class Logprob:
    def __init__(self, logprob): self.logprob = logprob

class Completion:
    def __init__(self, token_ids, logprobs): self.token_ids, self.logprobs = token_ids, logprobs

class Output:
    def __init__(self, request_id, completion, finished):
        self.request_id, self.outputs, self.finished = request_id, [completion], finished

class Engine:
    """One token a step; a step that only schedules gives nothing, as with asynchronous scheduling."""
    def __init__(self, length, seed):
        self.length, self.random, self.left, self.seen, self.idle = length, random.Random(seed), 0, set(), True
    def add_request(self, request_id, prompt, params):
        assert isinstance(request_id, str) and request_id not in self.seen, request_id
        assert params.ignore_eos and not params.detokenize and params.output_kind is RequestOutputKind.DELTA
        assert len(prompt["prompt_token_ids"]) + params.max_tokens <= self.length, "longer than max_model_len"
        self.seen.add(request_id)
        self.id, self.params, self.left, self.idle = request_id, params, params.max_tokens, True
    def has_unfinished_requests(self): return self.left > 0
    def step(self):
        self.idle = not self.idle
        if not self.idle and self.left == self.params.max_tokens:
            return []
        self.left -= 1
        greedy = self.params.temperature == 0
        token = 7 if greedy else self.random.randrange(100, 200)
        likely = None
        if self.params.logprobs:
            likely = [{9: Logprob(-3.0), 7: Logprob(-0.1), 8: Logprob(-2.0)}]
        return [Output(self.id, Completion([token], likely), self.left == 0)]

class LLM:
    def __init__(self, *, model, skip_tokenizer_init, dtype, max_model_len, max_num_seqs, enable_prefix_caching,
                 gpu_memory_utilization, seed):
        assert os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
        assert (dtype, max_num_seqs, enable_prefix_caching, skip_tokenizer_init) == ("bfloat16", 1, False, True)
        assert 0.09 < gpu_memory_utilization < 0.13, gpu_memory_utilization
        if model == "too-large":
            raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
        self.llm_engine = Engine(max_model_len, seed)
'''
IDS = (3, 1, 4)
DRAWN = {"temperature": 0.8, "top_p": 0.95, "seed": 5}
REQUEST = {
    "arm": "vllm", "model": "here", "device": "cuda:0", "context": 32, "prompts": [3], "weight_bytes": 2 << 30,
    "sampling": DRAWN, "slower": 0.0,
}  # fmt: skip


@pytest.fixture
def arm(tmp_path: Path) -> Iterator[LiveArm]:
    """The arm's process, in an interpreter that finds the made-up modules before any others."""
    for name, text in {"torch.py": TORCH, "vllm/__init__.py": VLLM, "vllm/sampling_params.py": PARAMS}.items():
        (tmp_path / "site" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "site" / name).write_text(text)
    settings = {"PYTHONPATH": str(tmp_path / "site"), "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    started = LiveArm("vllm", foreign_command(Path(sys.executable), "vllm_engine", settings), tmp_path / "arm.log")
    yield started
    started.close()


def ask(arm: LiveArm, **more: Any) -> dict[str, Any]:
    return arm.ask({"do": "generate", "ids": IDS, "new": 8, "warm": 2, "least_s": 0.0, **more}, 30)


def test_the_engine_is_asked_for_the_same_tokens_and_timed_at_its_first_one(arm: LiveArm) -> None:
    arm.load(REQUEST, 30)
    assert arm.facts["vllm"] == "0.26.0"
    assert arm.facts["cache_tokens"] == 32
    made = ask(arm)
    assert (made["tokens"], made["same"]) == ([7] * 8, True)
    assert made["first_s"][0] > 0
    assert made["rest_s"][0] > 0
    tops = arm.ask({"do": "tops", "ids": IDS, "new": 8, "count": 2}, 30)
    assert (tops["tokens"], tops["tops"]) == ([7] * 8, [[7, 8]] * 8)


def test_tokens_are_drawn_by_the_engine_s_own_generator(arm: LiveArm) -> None:
    arm.load(REQUEST, 30)
    drawn = ask(arm, sampling=DRAWN)
    assert len(drawn["tokens"]) == 8
    assert all(100 <= token < 200 for token in drawn["tokens"])
    assert ask(arm, sampling=DRAWN)["tokens"] != drawn["tokens"]


def test_what_does_not_fit_into_the_gpu_is_a_reason(arm: LiveArm) -> None:
    with pytest.raises(ArmFailed, match="exit code 1: RuntimeError: CUDA out of memory"):
        arm.load({**REQUEST, "model": "too-large"}, 30)


def test_a_sequence_longer_than_the_engine_was_made_for_is_a_reason(arm: LiveArm) -> None:
    arm.load(REQUEST, 30)
    with pytest.raises(ArmFailed, match="longer than max_model_len"):
        ask(arm, new=30)


def test_where_there_is_no_vllm_its_row_says_what_to_do() -> None:
    assert vllm_lacks("cpu", None) == vllm_lacks("cpu", Path(sys.executable))
    assert "not on cpu: --target cuda:0" in vllm_lacks("cpu", None)
    assert "CUDA_VISIBLE_DEVICES" in vllm_lacks("cuda:1", None)
    assert vllm_lacks("cuda:0", None) == "vLLM is not installed: name an interpreter that has it with --vllm-python"
    assert not vllm_lacks("cuda:0", Path(sys.executable))


def test_an_interpreter_that_has_no_vllm_is_a_reason(tmp_path: Path) -> None:
    made = setup(tmp_path, Commands(), device="cuda:0")
    started = LiveArm("vllm", command_of("vllm", None, made), tmp_path / "arm.log")
    try:
        with pytest.raises(ArmFailed, match="No module named 'vllm'"):
            started.load(REQUEST, 60)
    finally:
        started.close()


def test_the_suite_knows_the_arm() -> None:
    assert _suite(_parse(["--suite", "gpu", "--arms", "hf-eager,vllm"])).arms == ("hf-eager", "vllm")
