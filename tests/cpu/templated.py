"""The sample checkpoint with a chat template, which no checkpoint here has of its own."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from tests.cpu import flows

TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}"
    "# {{ message.role }}: {{ message.content }}\n"
    "{% endfor %}{% if add_generation_prompt %}# assistant: {% endif %}"
)


def with_template(folder: Path) -> Path:
    """A copy of the sample checkpoint at `folder` whose tokenizer has a template."""
    shutil.copytree(flows.SAMPLE, folder)
    config = folder / "tokenizer_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "chat_template": TEMPLATE}))
    return folder
