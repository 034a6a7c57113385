#!/usr/bin/env bash
# What a newcomer does: a wheel of this checkout in a fresh environment with a fresh home, without just and outside the
# repository, then the README's commands, the tutorial's as far as they need no download, the examples, and every help.
#
#     tests/newcomer/newcomer.sh [PYTHON]
#
# PYTHON makes the environment (python3). NEWCOMER_TORCH=DIR takes PyTorch from a site-packages folder by a .pth file
# instead of installing it. NEWCOMER_SECONDS (20) bounds each search whose command does not, and NEWCOMER_CHOOSE=first
# leaves timing out, for a machine that has much else to do. What fails ends the script with its exit code.
set -euo pipefail
python="${1:-python3}" root="$(cd "$(dirname "$0")/../.." && pwd -P)"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
say() { printf '\n== %s (%d s)\n' "$1" "$SECONDS"; }

# Nothing of who runs this: no settings, no caches, no tools beside the system's and the environment's.
for name in $(compgen -e | grep -E '^(AGENTCOMPILE_|HF_|XDG_|PYTHON|VIRTUAL_ENV)'); do unset "$name"; done
mkdir "$work/home" "$work/alone"
python="$(command -v "$python")"
export HOME="$work/home" PATH="$work/env/bin:/usr/local/bin:/usr/bin:/bin" AGENTCOMPILE_SECONDS="${NEWCOMER_SECONDS:-20}"
export AGENTCOMPILE_CHOOSE="${NEWCOMER_CHOOSE:-admitted}" CI=true COLUMNS=80

say "a wheel of the checkout"
mkdir "$work/checkout"
git -C "$root" ls-files -z --cached --others --exclude-standard | tar -C "$root" --null --files-from=- -cf - |
    tar -C "$work/checkout" -xf -
"$python" -m venv "$work/env"
pip="$work/env/bin/python -m pip --disable-pip-version-check"
$pip wheel --quiet --no-deps --wheel-dir "$work/wheel" "$work/checkout"

say "installed in a fresh environment"
if [ -n "${NEWCOMER_TORCH:-}" ]; then
    mkdir "$work/torch"
    for path in "$NEWCOMER_TORCH"/{torch,torchgen,functorch,torch-*.dist-info}; do ln -s "$path" "$work/torch/"; done
    echo "$work/torch" > "$("$work/env/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/torch.pth"
fi
wheel="$(echo "$work"/wheel/*.whl)"
$pip install --quiet --constraint "$root/constraints.txt" "${wheel}[tui,llm,gguf]"
rm -rf "$work/checkout/agentcompile" "$work/checkout/tui" "$work/checkout/templates"  # the wheel alone is what runs

say "the wheel alone"
cd "$work/alone"
agentcompile --version
agentcompile doctor
agentcompile compile preset:sample --out sample.lock.toml
agentcompile replay sample.lock.toml --locked
agentcompile generate sample.lock.toml --prompt 'def main():' --max-new-tokens 32 --beside-eager

say "the README's commands, in a checkout"
cd "$work/checkout"
"$work/env/bin/python" "$root/tests/newcomer/commands.py" "$root/README.md" "Five minutes" > "$work/readme.sh"
cat "$work/readme.sh"
bash -euxo pipefail "$work/readme.sh"

say "the tutorial's commands, on another model's file of the same name"
mkdir "$work/tutorial" && cd "$work/tutorial"
"$work/env/bin/python" "$root/tests/newcomer/commands.py" "$root/docs/tutorial.md" |
    grep -v '^agentcompile generate' > "$work/tutorial.sh"  # the stand-in has no tokenizer to read a text with
cat "$work/tutorial.sh"
"$work/env/bin/python" "$root/tests/newcomer/stand_in.py" SmolLM2-135M-Instruct.Q4_1.gguf
bash -euxo pipefail "$work/tutorial.sh"

say "the examples"
cp -r "$root/examples" "$work/examples" && cd "$work/examples"
lock="$work/alone/sample.lock.toml"
python generate.py "$lock" --model preset:sample
python own_module.py mine --seconds 10
python headless.py preset:sample "$lock" --bound 0.01

say "every help within 80 columns"
python "$root/tests/newcomer/helps.py"

say "done"
