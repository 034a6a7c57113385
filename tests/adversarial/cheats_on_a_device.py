"""Written kernels for a GPU that cheat by their text, or ask for more than the device has; no GPU is needed for them.

`KERNEL` stands for the signature of the entry, IN and OUT for the first input and the output.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from agentcompile.ir.attempt import WrittenLanguage
from tests.adversarial.cheats import Cheat, Gate, Refusal

_PORTS: dict[Gate, tuple[str, ...]] = {"task": ("in0", "weight", "out0"), "region": ("x", "w", "y")}
_TRITON = "import triton\nimport triton.language as tl\n\n"
_COPIES = "    at = tl.program_id(0) * 32 + tl.arange(0, 32)\n    tl.store(OUT + at, tl.load(IN + at))\n"
TRITON = f"{_TRITON}@triton.jit\nKERNEL\n{_COPIES}"
"""A text that the static check lets through, whatever it computes."""
CUDA = "KERNEL {\n    if (threadIdx.x < 32) OUT[threadIdx.x] = IN[threadIdx.x];\n}\n"
"""The same in CUDA C++."""


@dataclass(frozen=True, kw_only=True)
class DeviceCheat(Cheat):
    """A text in CUDA C++ or Triton."""

    language: WrittenLanguage
    launch: str = ""
    """A line of its launch in the manifest."""

    def kernel(self, gate: Gate) -> str:
        """The whole text."""
        return device_text(gate, self.language, self.code)

    def over(self, manifest: str) -> str:
        """The manifest, with the cheat's own line."""
        return manifest.replace("[[launch]]\n", f"[[launch]]\n{self.launch}\n") if self.launch else manifest


def device_text(gate: Gate, language: WrittenLanguage, code: str) -> str:
    """A kernel for a gate."""
    ports, before = _PORTS[gate], "" if language == "triton" else "a."
    signature = (
        f"def kernel_main({', '.join(ports)}):"
        if language == "triton"
        else 'extern "C" __global__ void kernel_main(const __grid_constant__ kernel_main_args a)'
    )
    names = {"KERNEL": signature, "IN": before + ports[0], "OUT": before + ports[-1]}
    return re.sub(r"\b(KERNEL|IN|OUT)\b", lambda found: names[found[1]], code)


def _triton(name: str, cheats: str, code: str, by: str) -> DeviceCheat:
    refusal = Refusal(verdict="rejected", by=by)
    return DeviceCheat(name=name, cheats=cheats, code=code, language="triton", task=refusal, region=refusal)


DEVICE_TEXTS = (
    _triton(
        "a way back to PyTorch",
        "falls back to the reference where its own kernel fails",
        f"{_TRITON}@triton.jit\nKERNEL\n"
        "    try:\n"
        "        tl.store(OUT, fast(IN))\n"
        "    except Exception:\n"
        "        OUT.copy_(torch.relu(IN))\n",
        "`Try`",
    ),
    _triton(
        "a lazy tensor",
        "returns a tensor that computes only when somebody looks",
        f"{TRITON}\n\nclass Later(torch.Tensor):\n    def numpy(self):\n        return torch.relu(self.given)\n",
        "`ClassDef`",
    ),
    _triton(
        "a side stream",
        "has the work done where no timer waits for it",
        f"{TRITON}\n\nside = torch.cuda.Stream()\n",
        "neither a @triton.jit function",
    ),
    _triton(
        "a patched synchronise",
        "has the timer wait for nothing",
        f"{TRITON}\n\ntorch.cuda.synchronize = lambda *_: None\n",
        "`Lambda`",
    ),
    DeviceCheat(
        name="more shared memory than there is",
        cheats="asks for more than a block of the device has, in its manifest",
        code=CUDA,
        language="cuda",
        launch="shared_bytes = 300000",
        task=Refusal(verdict="rejected", by="bytes of shared memory"),
        region=Refusal(verdict="rejected", by="bytes of shared memory"),
    ),
)
"""Refused before a compiler reads them."""
DEVICE_BUILDS = (
    DeviceCheat(
        name="a shared array over the limit",
        cheats="declares more shared memory than a block may have",
        code="KERNEL {\n"
        "    __shared__ float all[100000];\n"
        "    for (int i = threadIdx.x; i < 100000; i += blockDim.x) all[i] = IN[i % 32];\n"
        "    __syncthreads();\n"
        "    if (threadIdx.x < 32) OUT[threadIdx.x] = all[99999 - threadIdx.x];\n"
        "}\n",
        language="cuda",
        task=Refusal(verdict="build-failed", by="too much shared data"),
    ),
)
"""Refused by the compiler; both gates call the same one."""
