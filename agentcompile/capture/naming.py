"""Maps the parameter paths of a transformers model to the names under which its weights are stored.

Checkpoints of other versions name some tensors differently (GPT-NeoX's head is `embed_out` on disk and `lm_head` in
transformers 5; GPT-2's first files leave out `transformer.`). Transformers renames tensors while it loads them. The
same rules, applied to names only, tell which stored tensor each parameter is.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from torch import nn

from agentcompile.errors import AgentCompileError


def stored_names(model: nn.Module, stored: Collection[str]) -> dict[str, str]:
    """Return a stored name for every parameter path; tied parameters share the first name that is stored.

    A parameter without a stored tensor keeps its own path, which the checkpoint then reports as missing.

    Raises:
        AgentCompileError: transformers would compute the parameter from other tensors while loading.
    """
    plain, made = _renamed(model, stored)
    groups: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        groups.setdefault(id(parameter), []).append(name)
    out: dict[str, str] = {}
    for group in groups.values():
        found = next((name for name in group if name in stored), None) or next(
            (plain[name] for name in group if name in plain), None
        )
        if found is None and (source := next((made[name] for name in group if name in made), None)) is not None:
            raise AgentCompileError(
                f"{type(model).__name__}: {group[0]}: made from other tensors such as {source}, which is not supported",
                hint="use a checkpoint that stores the model's own tensors",
            )
        out.update(dict.fromkeys(group, found or group[0]))
    return out


def _renamed(model: nn.Module, stored: Collection[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return two maps from parameter path to the stored name that transformers reads for it.

    The first holds tensors that are taken unchanged, the second those that are input to a conversion.
    """
    from transformers import conversion_mapping, core_model_loading

    transforms: list[Any] = conversion_mapping.get_model_conversion_mapping(model)  # type: ignore[arg-type]
    renamings = [one for one in transforms if isinstance(one, core_model_loading.WeightRenaming)]
    converters = [one for one in transforms if isinstance(one, core_model_loading.WeightConverter)]
    state = model.state_dict()
    prefix: Any = getattr(model, "base_model_prefix", "")
    plain: dict[str, str] = {}
    made: dict[str, str] = {}
    for name in sorted(stored):
        renamed, converter = core_model_loading.rename_source_key(name, renamings, converters, prefix, state)
        (plain if converter is None else made).setdefault(renamed, name)
    return plain, made
