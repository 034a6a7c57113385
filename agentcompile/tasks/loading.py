"""Loads a task file inside a process of its own, and finds out what can be wrong with one.

In: a path. Out: a model, its tensors by name, and functions that draw inputs and run it; or a `TaskFault` that says
what is wrong and the remedy. The file is the user's own program and is trusted as such; it may still hang or be wrong.
"""

from __future__ import annotations

import copy
import inspect
import keyword
import re
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from agentcompile.backends import backend_of
from agentcompile.catalog.semantics import RESERVED
from agentcompile.ir.graph import DType
from agentcompile.ir.scope import TARGET_NAMES
from agentcompile.tasks.inputs import reseed, scaled

DTYPES: dict[torch.dtype, DType] = {
    torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32", torch.float64: "fp64",
    torch.int64: "int64", torch.int32: "int32", torch.int8: "int8", torch.uint8: "uint8",
    torch.bool: "bool",
}  # fmt: skip
_FORMAT = "the format is KernelBench's: class Model(nn.Module), get_inputs() and get_init_inputs()"
_DEVICE = re.compile("cuda|nvidia", re.IGNORECASE)
LEAVE_DEVICES = "leave devices to the caller: make tensors and modules without .cuda() and device="
_NAME_A_GPU = f"--target cuda:0, where there is one; or {LEAVE_DEVICES}"
_NO_MEMORY = ("can't allocate memory", "not enough memory", "out of memory")
_SKIPPED = ("num_batches_tracked",)
"""Tensors of modules that evaluation never reads."""


class TaskFault(Exception):
    """A task file is at fault."""

    def __init__(self, error: str, hint: str) -> None:
        super().__init__(error)
        self.error, self.hint = error, hint


class LoadedModel:
    """The model of a task with the functions of its file."""

    def __init__(self, path: Path, seed: int, device: str = "cpu") -> None:
        """Load the file, make its model in evaluation mode on `device`, to which inputs are moved, too.

        Raises:
            TaskFault: the file cannot be loaded, or lacks something.
        """
        self.path, self._seed, self.device = path, seed, torch.device(device)
        self._module = _module(path, self.device)
        self._draw = self._function("get_inputs")
        self._draw_at = getattr(self._module, "get_inputs_at", None)
        made = getattr(self._module, "Model", None)
        if not isinstance(made, type) or not issubclass(made, nn.Module):
            raise TaskFault("it has no class Model that is a torch.nn.Module", _FORMAT)
        reseed(seed)
        values, named = arguments(made, self._init_inputs())
        model = self._guarded("Model(*get_init_inputs())", lambda: made(*values, **named))
        self.model = self._guarded("Model.to(device)", lambda: moved(model.eval().requires_grad_(False), self.device))
        self.tensors = list(_tensors(self.model))
        separate([tensor for _, tensor in self.tensors])
        self.base = [tensor.detach().clone() for _, tensor in self.tensors]
        self.wide = self._guarded("Model.double()", lambda: _widened(self.model))
        self.wide_tensors = [tensor for _, tensor in _tensors(self.wide)]

    @property
    def varies(self) -> bool:
        """Whether the task has inputs of other shapes."""
        return callable(self._draw_at)

    def inputs(self, seed: int, scale: float = 1.0, at: float | None = None) -> list[Any]:
        """Return fresh inputs at a scale of values, and at a scale of shapes where `at` is given.

        Raises:
            TaskFault: the file's function fails, or gives no inputs.
        """
        reseed(seed)
        if at is None:
            found = self._guarded("get_inputs()", self._draw)
        else:
            assert self._draw_at is not None
            draw = self._draw_at
            found = self._guarded("get_inputs_at()", lambda: draw(at))
        if not isinstance(found, (list, tuple)) or not found:
            raise TaskFault("get_inputs() gives no list of inputs", "return a list of tensors, with one at least")
        if not any(isinstance(one, Tensor) for one in pytree.tree_leaves(list(found))):
            raise TaskFault("get_inputs() gives no tensor", "return a list of tensors, with one at least")
        there = self._guarded("moving inputs", lambda: placed(list(found), self.device))
        return [scaled_tree(one, scale) for one in there]

    def run(self, inputs: Sequence[Any], *, wide: bool = False) -> list[Tensor]:
        """Return the outputs of the model, or of its copy in float64, as a flat list of tensors of their own.

        The model gets copies: it may change its inputs in place.

        Raises:
            TaskFault: it fails, or gives something else than tensors.
        """
        model = self.wide if wide else self.model
        own = [pytree.tree_map(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, one) for one in inputs]
        with torch.inference_mode():
            made = self._guarded("Model.forward", lambda: model(*own))
        leaves = pytree.tree_leaves(made)
        if not leaves or not all(isinstance(one, Tensor) for one in leaves):
            raise TaskFault("Model.forward gives something else than tensors", "return a tensor or a tuple of tensors")
        return [one.detach().clone() for one in leaves]  # what is a parameter, or a view of one, changes later

    def set_parameters(self, values: Sequence[Tensor]) -> None:
        """Give the model and its copy in float64 these parameters and buffers."""
        for (_, tensor), value in zip(self.tensors, values, strict=True):
            tensor.detach().copy_(value)
        for tensor, value in zip(self.wide_tensors, values, strict=True):
            tensor.detach().copy_(value)

    def _function(self, name: str) -> Callable[[], Any]:
        found = getattr(self._module, name, None)
        if not callable(found):
            raise TaskFault(f"it has no function {name}", _FORMAT)
        return found  # type: ignore[no-any-return]

    def _init_inputs(self) -> list[Any] | dict[str, Any]:
        if not hasattr(self._module, "get_init_inputs"):
            return []
        found = self._guarded("get_init_inputs()", self._function("get_init_inputs"))
        if not isinstance(found, (list, tuple, dict)):
            raise TaskFault("get_init_inputs() gives no list", "return the arguments of Model's constructor as a list")
        return found if isinstance(found, dict) else list(found)

    def _guarded(self, what: str, call: Callable[[], Any]) -> Any:
        """Call a function of the file; whatever it raises is the file's fault."""  # noqa: DOC501
        try:
            return call()
        except TaskFault:
            raise
        except BaseException as error:
            raise fault_of(error, what, self.path, self.device) from error


def fault_of(error: BaseException, what: str, path: Path, device: torch.device) -> TaskFault:
    """Return what an exception of a task's own code says about the task, with the line where that code was."""
    if isinstance(error, MemoryError) or any(words in str(error) for words in _NO_MEMORY):
        return TaskFault(f"{what} needs more memory than it may have", "make its tensors smaller, or allow it more")
    if isinstance(error, ModuleNotFoundError):
        return TaskFault(f"{what}: it imports {error.name}, which is not installed", f"install {error.name}")
    line = _line(error, path)
    said = f"{what}{line}: {type(error).__name__}: {str(error)[:300]}"
    if backend_of(str(device)).own_memory:
        return TaskFault(said, f"run the file with its model and inputs on {device} with PyTorch alone until it works")
    if _DEVICE.search(str(error)):
        return TaskFault(f"it needs a GPU, and the target is the CPU: {said}", _NAME_A_GPU)
    return TaskFault(said, "run the file on the CPU with PyTorch alone until it works")


def arguments(made: Callable[..., Any], given: list[Any] | dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Return what ``get_init_inputs`` gives as arguments of a model's constructor: by place, and by name.

    A list is taken by place, as KernelBench does. Where its last entry is a dictionary whose keys are the constructor's
    parameters, or the list has no other meaning, that entry is taken by name: ``[16, {"bias": False}]``, and
    ``[[16], {"bias": False}]`` as well.
    """
    if isinstance(given, dict):
        return [], dict(given)
    if not given or not isinstance(given[-1], dict):
        return given, {}
    *before, named = given
    known = bool(named) and named.keys() <= inspect.signature(made).parameters.keys()
    if not known and _fits(made, given, {}):
        return given, {}
    listed = len(before) == 1 and isinstance(before[0], (list, tuple))
    for values in (list(before[0]) if listed else before, before):
        if _fits(made, values, named):
            return values, named
    return given, {}


def _fits(made: Callable[..., Any], values: Sequence[Any], named: Mapping[str, Any]) -> bool:
    try:
        inspect.signature(made).bind(*values, **named)
    except (TypeError, ValueError):
        return False
    return True


def _line(error: BaseException, path: Path) -> str:
    if isinstance(error, SyntaxError):
        return f", line {error.lineno}"
    found, trace = "", error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(path):
            found = f", line {trace.tb_lineno}"
        trace = trace.tb_next
    return found


def _module(path: Path, device: torch.device) -> types.ModuleType:
    """Execute a file as a module of its own; files beside it can be imported."""  # noqa: DOC501
    module = types.ModuleType(f"task_{re.sub(r'[^a-zA-Z0-9_]', '_', path.stem)}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module
    sys.path.append(str(path.parent))
    try:
        exec(compile(path.read_bytes(), str(path), "exec", dont_inherit=True), module.__dict__)
    except BaseException as error:
        raise fault_of(error, "importing it", path, device) from error
    return module


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield every distinct tensor that a model holds, plain attributes included, by qualified name."""
    seen = set[int]()
    for path, module in model.named_modules():
        plain = {name: one for name, one in vars(module).items() if isinstance(one, Tensor)}
        own = {**module._parameters, **module._buffers, **plain}
        for name, tensor in own.items():
            if tensor is not None and id(tensor) not in seen and name not in _SKIPPED:
                seen.add(id(tensor))
                yield f"{path}.{name}" if path else name, tensor


def moved(model: nn.Module, device: torch.device) -> nn.Module:
    """Move a model with all that it holds to a device; tensors that several modules share stay one tensor."""
    _change_held(model, lambda tensor: tensor.to(device))
    return model.to(device)


def _change_held(model: nn.Module, change: Callable[[Tensor], Tensor]) -> None:
    """Replace buffers and plain tensors of a model; those that are the same tensor stay the same."""
    there = dict[int, tuple[Tensor, Tensor]]()  # the first of each pair is kept, so that no other has its number
    for module in model.modules():
        held: tuple[dict[str, Any], ...] = (module._buffers, vars(module))
        for names in held:
            for name, tensor in names.items():
                if isinstance(tensor, Tensor):
                    names[name] = there.setdefault(id(tensor), (tensor, change(tensor)))[1]


def separate(tensors: Sequence[Tensor]) -> None:
    """Give those that overlap themselves, or one another, dense storage of their own: each is a port and changes alone.

    Tensors stay the same objects, so that a parameter that several modules share stays one.
    """
    spans = [_span(tensor) for tensor in tensors]
    for at, tensor in enumerate(tensors):
        begin, end = spans[at]
        own = end - begin >= tensor.numel() * tensor.element_size()
        alone = all(end <= other[0] or other[1] <= begin for to, other in enumerate(spans) if to != at)
        if tensor.numel() and not (own and alone):
            tensor.data = tensor.detach().clone(memory_format=torch.contiguous_format)


def _span(tensor: Tensor) -> tuple[int, int]:
    """Return where the bytes of a tensor begin and end."""
    last = sum((extent - 1) * stride for extent, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size() if tensor.numel() else 0


def _widened(model: nn.Module) -> nn.Module:
    """Return a copy of the model in float64."""
    wide = copy.deepcopy(model)
    _change_held(wide, lambda tensor: tensor.double() if tensor.is_floating_point() else tensor)
    return wide.double()


def placed(value: Any, device: torch.device) -> Any:
    """Return a value with every tensor on a device."""
    return pytree.tree_map(lambda one: one.to(device) if isinstance(one, Tensor) else one, value)


def scaled_tree(value: Any, scale: float) -> Any:
    """Return a value in which every floating-point tensor is times `scale`."""
    return pytree.tree_map(lambda one: scaled(one, scale) if isinstance(one, Tensor) else one, value)


def widened_tree(value: Any) -> Any:
    """Return a value in which every floating-point tensor is in float64."""

    def wide(one: Any) -> Any:
        return one.double() if isinstance(one, Tensor) and one.is_floating_point() else one

    return pytree.tree_map(wide, value)


def identifiers(names: Sequence[str], taken: Sequence[str]) -> list[str]:
    """Return a lower-case identifier for each qualified name, none of them reserved, taken or twice."""
    used, found = {*taken, *TARGET_NAMES, *RESERVED, *keyword.kwlist}, list[str]()
    for name in names:
        plain = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_") or "p"
        plain = plain if plain[0].isalpha() else f"p_{plain}"
        one, number = plain, 2
        while one in used or re.fullmatch(r"(in|out)\d+(_d\d+)?", one):
            one, number = f"{plain}_{number}", number + 1
        used.add(one)
        found.append(one)
    return found
