"""What was captured, without kernels and without rounding, beside the model: what is nearly right is wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers

from agentcompile.capture import Captured, capture
from agentcompile.verification.oracle import answers, as_captured
from agentcompile.verification.scores import contradiction, miscaptured
from agentcompile.verification.walks import walks
from tests.cpu import flows
from tests.models import tiny
from tests.models.handwritten import Handwritten

CONTEXT = 128


def said(captured: Captured, module: torch.nn.Module | None = None) -> str:
    """What the gate says of a captured model before it looks at any kernel."""
    context = captured.info.context
    groups = walks(context, captured.info.vocab, context, ends=[context])
    own = [walk for group in groups for walk in group]
    found = answers(captured, own, "cpu", module)
    graph = as_captured(captured, own, module)
    assert any(rows is not None for rows in graph)
    assert len(found.cached) == (found.oracle == "transformers")
    assert not any(contradiction(one.exact, one.own) for one in found.cached)
    return miscaptured(own, found.exact, found.eager, graph)


@pytest.mark.parametrize("name", tiny.CONFIGS)
def test_every_architecture_is_captured_right(name: str, tmp_path: Path) -> None:
    path = tiny.write(name, tmp_path / name, dtype=torch.bfloat16, seed=1)
    assert said(capture(path, context=CONTEXT)) == ""


def test_the_sample_and_a_module_are_captured_right(tmp_path: Path) -> None:
    assert said(capture(flows.SAMPLE, context=CONTEXT)) == ""
    module = Handwritten().to(torch.bfloat16)
    assert said(capture(module, context=CONTEXT, save_to=tmp_path / "weights"), module) == ""


def test_a_window_that_a_model_has_with_its_cache_alone_is_a_contradiction(tmp_path: Path) -> None:
    for context, far in ((CONTEXT, True), (64, False)):  # longer than the window, and not
        captured = capture(tiny.write("moshi", tmp_path / f"moshi-{context}"), context=context)
        own = [walk for group in walks(context, captured.info.vocab, context, ends=[context]) for walk in group]
        (found,) = answers(captured, own, "cpu").cached
        assert len(found.walk.ids) == context
        assert (contradiction(found.exact, found.own) > 0.01) == far


def longrope(folder: Path, most: int, *, drawn: bool) -> Path:
    """A checkpoint whose factors are others for sequences of more than `most` tokens, with weights that are `drawn` as
    wide as a trained model's, or as transformers makes them: then a position hardly counts."""
    kind, extra = tiny.WRONG["phi3-longrope"]
    rope = {**extra["rope_parameters"], "original_max_position_embeddings": most}
    sizes = {**tiny.BASE, "original_max_position_embeddings": most, "rope_parameters": rope}
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(getattr(transformers, kind)(**sizes), dtype=torch.bfloat16)
    with torch.no_grad():
        for parameter in model.parameters() if drawn else ():
            if parameter.dim() > 1:
                parameter.copy_(torch.randn(parameter.shape) * parameter.shape[-1] ** -0.5)
    model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("drawn", [True, False])
def test_factors_for_another_length_are_no_model_of_longer_prompts(drawn: bool, tmp_path: Path) -> None:
    """Capture refuses such a context by the config's word for it. Here what it sees says another limit than what the
    model has."""
    seen, true = (longrope(tmp_path / str(most), most, drawn=drawn) for most in (2 * CONTEXT, CONTEXT // 2))
    captured = capture(seen, context=CONTEXT)
    assert said(captured) == ""
    assert "as captured, without any rounding" in said(replace(captured, checkpoint=true))
