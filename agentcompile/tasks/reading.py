"""A kernel for a task as the catalog reads it: a checked template, or findings; nothing of the texts is executed."""

from __future__ import annotations

import tempfile
from pathlib import Path

from agentcompile.catalog import load
from agentcompile.catalog.aliases import KERNEL_FILES
from agentcompile.catalog.discover import MANIFEST
from agentcompile.errors import AgentCompileError
from agentcompile.ir.attempt import Written, WrittenLanguage
from agentcompile.ir.kind import KindFacts
from agentcompile.ir.region import Region
from agentcompile.ir.scope import region_dtype
from agentcompile.ir.template import Template
from agentcompile.ir.trial import Finding
from agentcompile.ops.layouts import LAYOUTS
from agentcompile.refine.points import finding, unreadable


def read(
    written: Written, region: Region, facts: KindFacts, language: WrittenLanguage
) -> Template | tuple[Finding, ...]:
    """Return the template that the texts make for a task, or why they make none."""
    if (first := next(unreadable(written), None)) is not None:
        return (first,)
    with tempfile.TemporaryDirectory(prefix="written-") as root:
        folder = Path(root) / region.kind / written.variant
        folder.mkdir(parents=True)
        (folder / MANIFEST).write_bytes(written.manifest.encode())
        (folder / KERNEL_FILES[language]).write_bytes(written.kernel.encode())
        try:
            made = load([Path(root)], kinds={region.kind: facts}, layouts=LAYOUTS).templates
        except AgentCompileError as error:
            return (finding("manifest", f"{error.message.replace(f'{Path(root).name}/', '')}; {error.hint}"),)
    dtype = region_dtype(region)
    found = next((one for one in made if dtype in one.dtypes), made[0])
    if any(found.layout(port.name) != "row-major" for port in region.ports):
        return (finding("layout", "a task's buffers are row-major: leave `layouts` out"),)
    return found
