"""Which sites of a chunk run for its last token alone: those of kernels by rows, read by nobody but for that token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pytest

from agentcompile.ir.graph import DType, Graph, Node, Use, Value, View
from agentcompile.ir.region import Regime, Region, Site
from agentcompile.ir.template import COUNT, Candidate, Launch, Source
from agentcompile.ir.trial import Choice, Fallback, Kernel
from agentcompile.regions.partition import partition
from agentcompile.runtime.rowwise import for_last_token

WIDTH = 64
LAST = (View(op="slice", args=(1, -1, 9223372036854775807)),)


def value(name: str, width: int = WIDTH, dtype: DType = "fp32", tokens: str | int = "T") -> Value:
    return Value(id=name, shape=(1, tokens, width), dtype=dtype, role="activation")


def graph(*, width: int = WIDTH, ends: tuple[str, ...] = ("logits",)) -> Graph:
    """A chain of an element-wise operator behind an input, of whose end the head reads the last token."""
    names = ["a", "b", "c"]
    nodes = [
        Node(id=out, op="silu", inputs=(Use(value=read),), outputs=(out,))
        for read, out in zip("xab", names, strict=True)
    ]
    nodes.append(Node(id="logits", op="silu", inputs=(Use(value="c", views=LAST),), outputs=("logits",)))
    values = [value(name, width) for name in ("x", *names)] + [value("logits", width, tokens=1)]
    return Graph(
        phase="prefill",
        values=tuple(values),
        nodes=tuple(nodes),
        inputs=("x",),
        outputs=tuple((name, Use(value=name)) for name in ends),
    )


@dataclass(frozen=True)
class Placed:
    region: Region
    site: Site
    choice: Choice


KERNEL = Kernel(
    candidate=Candidate(
        region="r", template="t", template_digest="d", params=(), target="", regime=Regime(phase="prefill")
    ),
    source="by rows", speedup=2.0, half_width=0.1,
)  # fmt: skip
LAUNCH = Launch(entry="run", arguments=("x", "y", COUNT))


def sources(**changes: object) -> Mapping[str, Source]:
    made = Source(language="cpp", text="", launches=(LAUNCH,), workspaces=(), flags=())
    return {"by rows": replace(made, **changes)}  # type: ignore[arg-type]


def placed(whole: Graph, *in_pytorch: str) -> list[Placed]:
    found = partition(whole, Regime(phase="prefill"), tokens=8)
    regions = {site.nodes: (region, site) for region in found.regions for site in region.sites}
    made = []
    for node in whole.nodes:
        region, site = regions[node.id,]
        made.append(Placed(region, site, Fallback(reason="-") if node.id in in_pytorch else KERNEL))
    return made


def ending(whole: Graph, *in_pytorch: str, given: Mapping[str, Source] | None = None) -> list[str]:
    found = for_last_token(whole, placed(whole, *in_pytorch), given or sources())
    return [node.id for at, node in enumerate(whole.nodes) if at in found]


def test_all_that_the_head_s_last_token_alone_reads_is_computed_for_it() -> None:
    assert ending(graph()) == ["a", "b", "c"]
    assert ending(graph(), "logits") == ["a", "b", "c"], "PyTorch's head reads the last token alone, too"


@pytest.mark.parametrize(("in_pytorch", "ends"), [("c", []), ("b", ["c"]), ("a", ["b", "c"])])
def test_what_pytorch_computes_it_computes_for_all_tokens_and_reads_all_of(in_pytorch: str, ends: list[str]) -> None:
    assert ending(graph(), in_pytorch) == ends


def test_what_the_graph_gives_out_is_whole_and_so_is_what_it_is_made_from() -> None:
    assert ending(graph(ends=("logits", "b"))) == ["c"]
    assert ending(graph(ends=("logits", "c"))) == []


def test_kernels_that_take_no_count_and_library_calls_run_for_all() -> None:
    assert ending(graph(), given=sources(launches=(replace(LAUNCH, arguments=("x", "y")),))) == []
    assert ending(graph(), given=sources(language="library")) == []


def test_rows_that_begin_within_a_line_stay_together() -> None:
    """A kernel may rely on the alignment that it was validated with."""
    assert ending(graph(width=20)) == []


def test_a_decode_step_has_no_such_sites() -> None:
    whole = graph()
    found = for_last_token(replace(whole, phase="decode"), placed(whole), sources())
    assert found == frozenset()
