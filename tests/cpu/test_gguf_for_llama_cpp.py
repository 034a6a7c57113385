"""Checkpoints that are written to GGUF for llama.cpp: read back, they are the checkpoints bit for bit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from agentcompile.bench.models.gguf_file import write_gguf
from safetensors.torch import load_file

from agentcompile.checkpoint.locate import find_model
from tests.models import tiny


@pytest.mark.parametrize("family", ["qwen3", "llama"])
def test_weights_and_rotation_come_back_as_they_were(family: str, tmp_path: Path) -> None:
    model = tiny.write(family, tmp_path / "model", dtype=torch.bfloat16)
    write_gguf(model, tmp_path / "model.gguf")
    back = find_model(str(tmp_path / "model.gguf"), tmp_path / "cache")
    here, there = (load_file(str(path / "model.safetensors")) for path in (model, back))
    assert there.keys() == here.keys()
    assert all(torch.equal(there[name], weight) for name, weight in here.items())
    bases = [json.loads((path / "config.json").read_text())["rope_parameters"]["rope_theta"] for path in (model, back)]
    assert bases[0] == pytest.approx(bases[1])


def test_what_cannot_be_written_is_named(tmp_path: Path) -> None:
    config = {"model_type": "llama", "rope_scaling": {"rope_type": "llama3", "factor": 8.0}}
    for found, why in ((config, "llama3"), ({"model_type": "phi3"}, "phi3 is neither")):
        (tmp_path / "config.json").write_text(json.dumps(found))
        with pytest.raises(ValueError, match=why):
            write_gguf(tmp_path, tmp_path / "out.gguf")
