"""Bad input through the real command line: the exit code, what is wrong and where, a remedy, and never a traceback."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.cpu import flows
from tests.cpu.conftest import CONTEXT

Make = Callable[[str, str], Path]
Compile = Callable[..., flows.Ended]


@pytest.fixture
def model(checkpoint: Make, tmp_path: Path) -> Path:
    """A copy of a good checkpoint, to spoil."""
    return Path(shutil.copytree(checkpoint("tiny-qwen3", "fp32"), tmp_path / "model"))


@pytest.fixture
def compile(warm: Path, tmp_path: Path) -> Compile:
    """`agentcompile compile` with a small budget; its lock and run lie in the test's folder."""

    def run(model: Path | str, *more: object, **settings: Any) -> flows.Ended:
        paths = ("--out", tmp_path / "out.lock.toml", "--run-dir", tmp_path / "run")
        common = ("--budget", 1, "--threads", flows.THREADS)
        context = () if "--context" in more else ("--context", CONTEXT)
        return flows.verb(warm, "compile", model, *paths, *common, *context, *more, **settings)

    return run


def edit(model: Path, **config: Any) -> Path:
    """Change keys of config.json."""
    path = model / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **config}))
    return model


def store(model: Path, name: str, tensor: torch.Tensor) -> None:
    """Replace one tensor of the checkpoint."""
    from safetensors.torch import load_file, save_file

    path = str(model / "model.safetensors")
    save_file({**load_file(path), name: tensor}, path)


def test_a_fault_ends_the_installed_command_with_its_code_and_two_lines(warm: Path, tmp_path: Path) -> None:
    done = flows.cli(warm, "compile", tmp_path / "nowhere", "--run-dir", tmp_path / "run", "--quiet")
    done.refuses(2, str(tmp_path / "nowhere"))
    assert len(done.err.splitlines()) == 2


def test_a_model_that_is_not_there_is_named(compile: Compile, tmp_path: Path) -> None:
    compile(tmp_path / "nowhere").refuses(2, str(tmp_path / "nowhere"), "config.json")


def test_a_preset_that_is_not_there_is_named_with_its_nearest(compile: Compile) -> None:
    compile("preset:tiny-qwen").refuses(2, "preset:tiny-qwen", "tiny-qwen3")


def test_missing_weights_are_named(compile: Compile, model: Path) -> None:
    (model / "model.safetensors").unlink()
    compile(model).refuses(2, str(model), "model.safetensors")


@pytest.mark.parametrize("part", [0.0, 0.0005, 0.5, 0.999])
def test_truncated_weights_are_named(part: float, compile: Compile, model: Path) -> None:
    path = model / "model.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * part)])
    compile(model).refuses(2, str(path), "download")


def test_a_tensor_of_the_wrong_shape_is_named_with_both_shapes(compile: Compile, model: Path) -> None:
    store(model, "model.layers.1.mlp.up_proj.weight", torch.zeros(160, 63))
    compile(model).refuses(2, "model.layers.1.mlp.up_proj.weight", "[160, 63]", "[160, 64]")


def test_a_tensor_of_an_unsupported_dtype_is_named(compile: Compile, model: Path) -> None:
    store(model, "model.norm.weight", torch.zeros(64, dtype=torch.float8_e4m3fn))
    compile(model).refuses(2, "model.norm.weight", "F8_E4M3")


def test_a_tensor_of_another_dtype_than_the_rest_is_named(compile: Compile, model: Path) -> None:
    store(model, "model.norm.weight", torch.ones(64, dtype=torch.bfloat16))
    compile(model).refuses(2, "model.norm.weight", "bf16", "fp32")


CONFIGS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "unknown-architecture": ({"model_type": "banana", "architectures": ["Banana"]}, ("model_type", "banana")),
    "no-architecture": ({"model_type": None}, ("model_type", "None")),
    "absurd-vocabulary": ({"vocab_size": 10**12}, ("vocab_size", "1000000000000")),
    "negative": ({"hidden_size": -64}, ("hidden_size", "-64")),
    "absurd-layers": ({"num_hidden_layers": 5_000_000}, ("num_hidden_layers", "5000000")),
    "wide": ({"intermediate_size": 9_000_000}, ("9000000",)),
    "heads": ({"num_key_value_heads": 3}, ("num_key_value_heads", "3")),
    "text": ({"hidden_size": "sixty-four"}, ("hidden_size", "sixty-four")),
    "quantised": ({"quantization_config": {"quant_method": "gptq"}}, ("quantization_config", "gptq")),
    "experts": ({"num_experts": 64}, ("num_experts", "64", "dense")),
    "activation": ({"hidden_act": "nosuch"}, ("nosuch",)),
    "rope": ({"rope_parameters": {"rope_type": "nosuch", "rope_theta": 1e4}}, ("nosuch",)),
    "epsilon": ({"rms_norm_eps": "small"}, ("config.json",)),
    "eos": ({"eos_token_id": "end"}, ("eos_token_id",)),
}


@pytest.mark.parametrize("case", CONFIGS)
def test_a_config_that_cannot_be_is_named_with_key_and_value(case: str, compile: Compile, model: Path) -> None:
    change, words = CONFIGS[case]
    if case == "eos":
        (model / "generation_config.json").unlink()
    compile(edit(model, **change)).refuses(2, "config.json", *words)


def test_a_config_that_is_no_json_is_named(compile: Compile, model: Path) -> None:
    (model / "config.json").write_text('{"model_type": ')
    compile(model).refuses(2, str(model / "config.json"))


def test_a_cache_longer_than_the_model_knows_is_refused(compile: Compile, model: Path) -> None:
    compile(model, "--context", 513).refuses(2, "513", "512", "config.json")


@pytest.mark.parametrize(
    ("flag", "value", "words"),
    [
        ("--context", "0", ("--context", "from 1")),
        ("--budget", "many", ("--budget", "whole number")),
        ("--threads", "-1", ("--threads",)),
        ("--target", "gpu9", ("--target", "gpu9", "cpu")),
        ("--advisor", "oracle", ("--advisor", "oracle", "heuristic")),
    ],
)
def test_a_setting_out_of_range_is_named_with_what_is_allowed(
    flag: str, value: str, words: tuple[str, ...], compile: Compile, model: Path
) -> None:
    compile(model, flag, value).refuses(2, *words)


MANIFEST = """
region = "linear"
language = "cpp"
about = "for a test"
dtypes = ["fp32"]
accumulation = "float32"
deterministic = true
requires = ["{requires}"]

[params.ROWS]
domain = [1, 2, 4]
default = {default}
about = "rows at once"

[[launch]]
entry = "kernel"
arguments = ["x", "w", "y"]
{more}
"""


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"default": "3"}, ("params.ROWS.default", "3", "1, 2, 4")),
        ({"requires": "rows % ROW == 0"}, ("requires", "ROW")),
        ({"more": "[[launches]]"}, ("launches",)),
        ({"more": "= ="}, ("template.toml",)),
    ],
    ids=["default", "unknown-parameter", "unknown-key", "not-toml"],
)
def test_a_broken_template_is_left_out_and_named_with_key_and_value(
    fields: dict[str, str], words: tuple[str, ...], warm: Path, model: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "mine/linear/mine"
    folder.mkdir(parents=True)
    (folder / "kernel.cpp").write_text("")
    path = folder / "template.toml"
    path.write_text(MANIFEST.format(**{"requires": "rows % ROWS == 0", "default": "2", "more": "", **fields}))
    shared = ("--context", CONTEXT, "--threads", flows.THREADS)
    done = flows.verb(warm, "inspect", model, "--templates", tmp_path / "mine", *shared)
    assert done.code == 0, done.err
    warning = next(line for line in done.err.splitlines() if "this template is left out" in line)
    assert all(word in warning for word in ("mine/linear/mine/template.toml", *words))


def test_a_folder_of_templates_that_is_not_there_is_named(compile: Compile, model: Path, tmp_path: Path) -> None:
    compile(model, "--templates", tmp_path / "gone").refuses(2, str(tmp_path / "gone"))


def test_a_host_without_a_compiler_is_told_what_to_install(compile: Compile, model: Path) -> None:
    compile(model, env={"PATH": ""}).refuses(6, "no C++ compiler", "g++", "AGENTCOMPILE_COMPILER")


def test_a_compiler_that_is_not_there_is_named(compile: Compile, model: Path) -> None:
    compile(model, env={"AGENTCOMPILE_COMPILER": "nosuch++"}).refuses(6, "nosuch++", "AGENTCOMPILE_COMPILER")


def test_a_compiler_that_is_none_is_named(compile: Compile, model: Path) -> None:
    compile(model, env={"AGENTCOMPILE_COMPILER": "/bin/false"}).refuses(6, "/bin/false")


def test_a_file_in_place_of_the_run_directory_is_named(compile: Compile, model: Path, tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    compile(model).refuses(6, str(tmp_path / "run"))


def test_a_file_in_place_of_the_home_is_named(compile: Compile, model: Path, tmp_path: Path) -> None:
    (tmp_path / "home").write_text("")
    compile(model, env={"AGENTCOMPILE_HOME": str(tmp_path / "home")}).refuses(6, str(tmp_path / "home"))


def test_a_lock_that_cannot_be_written_is_refused_before_the_search(
    compile: Compile, model: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    done = compile(model, "--out", tmp_path / "file/out.lock.toml")
    done.refuses(6, str(tmp_path / "file"), "--out")
    assert "search" not in done.err


def test_a_run_directory_that_holds_a_run_is_not_written_over(compile: Compile, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()  # a folder that was there keeps even a run that never began
    compile(tmp_path / "nowhere").refuses(2)
    before = (tmp_path / "run/events.jsonl").read_bytes()
    compile(tmp_path / "nowhere").refuses(2, str(tmp_path / "run"), "--resume")
    assert (tmp_path / "run/events.jsonl").read_bytes() == before


def generate(warm: Path, lock: Path, *more: object) -> flows.Ended:
    return flows.verb(warm, "generate", lock, "--model", flows.SAMPLE, "--threads", flows.THREADS, *more)


def test_a_prompt_longer_than_the_cache_is_refused(warm: Path, planted: Make) -> None:
    done = generate(warm, planted("sample", "bf16"), "--prompt", "x = 1\n" * 200)
    done.refuses(2, "longer than the cache of 96", "--context")


def test_an_empty_prompt_is_refused(warm: Path, planted: Make) -> None:
    generate(warm, planted("sample", "bf16"), "--prompt", "").refuses(2, "--prompt", "empty")


def test_text_for_a_model_without_a_tokenizer_is_refused(warm: Path, planted: Make, checkpoint: Make) -> None:
    lock, model = planted("tiny-qwen3", "fp32"), checkpoint("tiny-qwen3", "fp32")
    done = flows.verb(warm, "generate", lock, "--model", model, "--threads", flows.THREADS, "--prompt", "hello")
    done.refuses(2, "tokenizer")


def test_a_broken_tokenizer_is_named(warm: Path, planted: Make, tmp_path: Path) -> None:
    model = Path(shutil.copytree(flows.SAMPLE, tmp_path / "sample"))
    (model / "tokenizer.json").write_text("{}")
    lock = planted("sample", "bf16")
    done = flows.verb(warm, "generate", lock, "--model", model, "--threads", flows.THREADS, "--prompt", "x")
    done.refuses(2, str(model / "tokenizer.json"))
