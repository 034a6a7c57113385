# Every recipe makes what it needs; `just` alone lists them.

python := env("PYTHON", "python3")
bin := justfile_directory() / ".venv/bin"

# Hundreds of processes import the same modules: each compiling them again would take a minute of the tests.
export PYTHONDONTWRITEBYTECODE := ""

# List the recipes.
_default:
    @just --list --unsorted

# Make .venv with everything at the versions of constraints.txt; nothing to do when it is up to date.
setup:
    #!/usr/bin/env bash
    set -euo pipefail
    "{{ python }}" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' || {
        echo "agentcompile needs Python 3.11 or 3.12; name one with PYTHON=python3.11 just setup" >&2; exit 6; }
    want="$("{{ python }}" --version) $(pwd -P) $(cat pyproject.toml constraints.txt | sha256sum)"
    if [ "$(cat .venv/installed 2>/dev/null || true)" = "$want" ]; then exit 0; fi
    [ -x .venv/bin/python ] || "{{ python }}" -m venv .venv
    .venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
    printf '%s' "$want" > .venv/installed

# Compile the sample checkpoint, replay its lock, and generate beside PyTorch.
demo: setup
    "{{ bin }}/agentcompile" compile bench/models/sample --seconds 120 --out .agentcompile/sample.lock.toml
    "{{ bin }}/agentcompile" replay .agentcompile/sample.lock.toml --model bench/models/sample
    "{{ bin }}/agentcompile" generate .agentcompile/sample.lock.toml --model bench/models/sample --prompt 'def main():' --max-new-tokens 160 --beside-eager
    @echo "agentcompile is ready: source .venv/bin/activate"

# Everything that must be green: lint, types, contracts, tests that need no GPU.
test: setup lint types contracts
    "{{ bin }}/python" -m tests

# Style: ruff's rules and its formatting, and nothing that is dead.
lint: setup
    "{{ bin }}/ruff" check .
    "{{ bin }}/ruff" format --check .
    "{{ bin }}/vulture"

# Types: mypy strict and pyright, beside one another.
types: setup
    #!/usr/bin/env bash
    set -euo pipefail
    "{{ bin }}/mypy" & first=$!
    "{{ bin }}/pyright" || { wait $first || true; exit 1; }
    wait $first

# What may import what.
contracts: setup
    "{{ bin }}/lint-imports" --no-logo

# Draw docs/architecture.md's picture anew, from the imports.
architecture: setup
    "{{ bin }}/python" docs/drawing.py

# Write docs/reference.md anew, from the code.
reference: setup
    "{{ bin }}/python" docs/reference.py

# Draw the pictures of the app in docs/pictures anew, from a recorded run.
pictures: setup
    "{{ bin }}/python" docs/pictures.py

# Build the documentation's site in site/; a link that leads nowhere is an error.
docs: setup
    NO_MKDOCS_2_WARNING=1 "{{ bin }}/mkdocs" build --strict --quiet

# What a newcomer does, in a fresh environment with a wheel of this checkout: minutes.
newcomer: setup
    "{{ justfile_directory() }}/tests/newcomer/newcomer.sh" "{{ bin }}/python"

# Tests on a CUDA device, with the Python that has its PyTorch.
gpu *ARGS:
    "{{ python }}" -m pytest -m gpu {{ ARGS }}

# NVIDIA's compute-sanitizer over the default of every template, on a CUDA device.
sanitize *ARGS:
    #!/usr/bin/env bash
    set -euo pipefail
    for tool in memcheck racecheck initcheck synccheck; do
        echo "== $tool"
        compute-sanitizer --tool "$tool" --error-exitcode 9 --target-processes all \
            "{{ python }}" -m pytest -q -m gpu -k "default" tests/gpu/test_templates_gpu.py {{ ARGS }}
    done

# One benchmark recipe; alone it lists them.
bench *ARGS: setup
    "{{ bin }}/agentcompile" bench {{ ARGS }}

# Wheels of this project and of what it needs beside PyTorch, for a machine with Python 3.12 and no network.
wheels DIR:
    #!/usr/bin/env bash
    set -euo pipefail
    rm -rf "{{ DIR }}" build && mkdir -p "{{ DIR }}"  # a build folder keeps files that the checkout has no more
    need=(pytest-xdist execnet annotated-types platformdirs pydantic pydantic-core tomli-w typer typing-extensions typing-inspection rich)
    pinned=()
    for name in "${need[@]}"; do pinned+=("$(grep -i "^${name//-/[-_]}==" constraints.txt)"); done
    "{{ python }}" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
        --python-version 3.12 --implementation cp --platform manylinux_2_28_x86_64 \
        --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 -d "{{ DIR }}" "${pinned[@]}"
    "{{ python }}" -m pip wheel --quiet --disable-pip-version-check --no-deps . -w "{{ DIR }}"
    ls "{{ DIR }}"
