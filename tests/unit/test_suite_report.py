"""The report of a suite's result: its numbers are the result's, its strings are shown and never obeyed."""

from __future__ import annotations

import random
import re
import struct
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from agentcompile.bench.harness.result import (
    ArmResult,
    Case,
    Compiled,
    Floor,
    Interval,
    RegionShare,
    RoundTimes,
    Spread,
    SuiteResult,
    write_result,
)
from agentcompile.bench.report import plots
from agentcompile.bench.report.cells import number
from agentcompile.bench.report.markdown import arms_table, escaped, markdown, regions_table
from agentcompile.bench.report.page import page
from agentcompile.bench.report.plots import draw
from agentcompile.bench.report.recipe import run
from agentcompile.bench.report.sheet import DPI, WIDTH_IN, Plot

from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.ir.target import Target

EVIL = '<script src="http://evil.example/a.js">alert(1)</script>'
RATES = {"hf-eager": 0.02, "hf-compile": 0.0125, "agentcompile": 0.005}
ABSENT = ArmResult(name="llama.cpp", state="absent", reason="not | installed here")
FAILED = ArmResult(name="vllm", state="failed", reason="out of memory")
MACHINE = Target(
    kind="cpu",
    device="made up",
    arch="x86_64",
    isa=("avx2",),
    threads=2,
    cache_bytes=(1 << 15, 1 << 20),
    toolchain="g++ 12.2.0",
    libraries=(("torch", "2.13.0"),),
)
REGIONS = (
    RegionShare(name="rope", kind="rope", sites=4, ns=500.0, floor_ns=250.0, choice="pytorch"),
    RegionShare(name="mlp.down", kind="gemv", sites=4, ns=1500.0, floor_ns=1200.0, choice="gemv/split VEC=8"),
)


def arm_of(name: str, rounds: tuple[RoundTimes, ...], base: str) -> ArmResult:
    times = sorted(one.token_s[name] for one in rounds if one.kept)
    ratio = RATES[base] / RATES[name]
    return ArmResult(
        name=name,
        state="measured",
        facts={"torch": "2.13.0"},
        first_s=Spread(median=times[0] * 5, p95=times[-1] * 5, count=20),
        token_s=Spread(median=times[len(times) // 2], p95=times[-1], count=20),
        total_s=Spread(median=1.0, p95=1.1, count=20),
        tokens_per_s=1 / times[len(times) // 2],
        peak_memory_bytes=2_345_000_000,
        load_s=(1.0, 3.0, 2.0),
        compile_s=None if name == base else 61.25,
        agrees="",
        times_floor=1.234,
        speedup=None if name == base else Interval(value=ratio, low=ratio * 0.95, high=ratio * 1.05, rounds=9),
        total_speedup=None if name == base else Interval(value=ratio / 2, low=ratio * 0.4, high=ratio * 0.6, rounds=9),
    )


def case_of(workload: str = "chat", model: str = "sample", missing: tuple[ArmResult, ...] = (ABSENT,)) -> Case:
    chance = random.Random(f"{model}/{workload}")
    rounds = tuple(
        RoundTimes(
            process=at // 5,
            kept=at != 3,
            token_s={name: rate * chance.lognormvariate(0, 0.02) for name, rate in RATES.items()},
            first_s={},
            read_bytes_per_s=20e9,
        )
        for at in range(10)
    )
    return Case(
        model=model,
        workload=workload,
        mode="greedy",
        prompt_tokens=128,
        new_tokens=64,
        baseline="hf-eager",
        floor=Floor(weight_bytes=80_000_000, cache_bytes=1_500_000, read_bytes_per_s=20e9, flops_per_s=1e12),
        arms=(*(arm_of(name, rounds, "hf-eager") for name in RATES), *missing),
        rounds=rounds,
    )


def result_of(*cases: Case, compiled: dict[str, Compiled] | None = None) -> SuiteResult:
    return SuiteResult(
        made="2026-11-22T10:00:00Z",
        command="agentcompile bench run --suite cpu",
        revision="a" * 40,
        changed_since=True,
        suite="cpu",
        machine=MACHINE,
        environment={"python": "3.11.9"},
        policy="c0ffee",
        seed=0,
        cases=cases,
        compiled=compiled or {},
    )


LOCKED = {"sample": Compiled(lock="f" * 64, compile_s=163.2, regions=REGIONS)}
RESULT = result_of(case_of(), case_of("reasoning", missing=(ABSENT, FAILED)), compiled=LOCKED)


@pytest.fixture(scope="module")
def drawn() -> tuple[Plot, ...]:
    pytest.importorskip("matplotlib")
    return draw(RESULT)


def cells(table: str, start: str) -> list[str]:
    line = next(line for line in table.splitlines() if line.startswith(start))
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def text_of(svg: str) -> str:
    return "\n".join("".join(found.itertext()) for found in ElementTree.fromstring(svg).iter() if "text" in found.tag)


class Page(HTMLParser):
    """What a browser would make of a page: its tags, its attributes and its text."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text = ""
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_numbers_of_the_table_are_the_results() -> None:
    text = markdown(RESULT, {})
    heads, row = cells(text, "| workload | arm"), cells(text, "| chat, greedy | agentcompile")
    shown, arm = dict(zip(heads, row, strict=True)), RESULT.cases[0].arm("agentcompile")
    assert arm is not None
    assert arm.token_s is not None
    assert arm.first_s is not None
    assert arm.tokens_per_s is not None
    assert float(shown["tokens/s"]) == pytest.approx(arm.tokens_per_s, rel=1e-3)
    assert float(shown["token, median ms"]) == pytest.approx(arm.token_s.median * 1e3, rel=1e-3)
    assert float(shown["token, p95 ms"]) == pytest.approx(arm.token_s.p95 * 1e3, rel=1e-3)
    assert float(shown["first token, median ms"]) == pytest.approx(arm.first_s.median * 1e3, rel=1e-3)
    assert shown["request's speed-up (95 %)"] == "2.00× (1.60–2.40)"
    assert shown["token's speed-up (95 %)"] == "4.00× (3.80–4.20)"
    assert shown["× roofline"] == "1.23"
    assert shown["peak memory"] == "2.35 GB"
    assert (shown["load, s"], shown["compile, s"]) == ("2.00", "61.2")


def test_the_baselines_row_says_so() -> None:
    assert "baseline" in cells(markdown(RESULT, {}), "| chat, greedy | hf-eager")


def test_the_floor_says_which_bytes_it_counted() -> None:
    text = markdown(RESULT, {})
    heads = cells(text, "| workload | prompt")
    row = dict(zip(heads, cells(text, "| chat, greedy | 128"), strict=True))
    assert (row["weights"], row["KV at the mean context"], row["read GB/s"]) == ("80 MB", "1.5 MB", "20.00")
    assert float(row["roofline, ms"]) == pytest.approx(4.075, rel=1e-3)
    assert (row["rounds kept"], row["dropped"]) == ("9", "1")


def test_the_head_says_what_ran_where_and_what_was_dropped() -> None:
    text = markdown(RESULT, {})
    wanted = (
        "made up, 2 threads",
        "g++ 12.2.0",
        "torch 2.13.0",
        "3.11.9",
        "agentcompile bench run --suite cpu",
        "c0ffee",
    )
    for fact in (*wanted, f"{'a' * 12} with changes", "2026-11-22T10:00:00Z", "18 kept, 2 dropped"):
        assert fact in text


def test_a_column_of_which_nothing_is_known_is_left_out() -> None:
    assert "J/token" not in arms_table(RESULT.cases).heads
    case = RESULT.cases[0]
    known = replace(case, arms=tuple(replace(arm, joules_per_token=0.5) for arm in case.arms))
    assert "J/token" in arms_table([known]).heads


def test_absent_and_failed_arms_are_rows_with_their_reason_and_no_number() -> None:
    row = cells(markdown(RESULT, {}), "| reasoning, greedy | vllm")
    assert row[-1] == "failed: out of memory"
    assert set(row[2:-1]) == {"-"}
    assert cells(markdown(RESULT, {}), "| all | llama.cpp")[-1] == r"absent: not \| installed here"


def test_an_arm_that_is_not_absent_from_all_cases_for_one_reason_has_a_row_for_each() -> None:
    first, *rest = [case for case in RESULT.cases if case.arm("llama.cpp")]
    for arm in (replace(ABSENT, reason="another"), replace(ABSENT, state="failed")):
        others = tuple(arm if one.name == arm.name else one for one in first.arms)
        rows = arms_table([replace(first, arms=others), *rest]).rows
        assert len([row for row in rows if row[1] == "llama.cpp"]) == 1 + len(rest)
    rows = arms_table([first]).rows
    assert [row[0] for row in rows if row[1] == "llama.cpp"] == [f"{first.workload}, {first.mode}"]


def test_a_wrong_arms_times_are_not_shown() -> None:
    case = RESULT.cases[0]
    wrong = replace(case.arms[2], state="wrong", reason="token 7 differs")
    row = arms_table([replace(case, arms=(wrong,))]).rows[0]
    assert row == ("chat, greedy", "agentcompile", "wrong: token 7 differs")


def test_an_arm_whose_output_was_not_compared_says_so() -> None:
    case = RESULT.cases[0]
    row = arms_table([replace(case, arms=(replace(case.arms[0], agrees=None),))]).rows[0]
    assert row[-1] == "output not compared"


def test_regions_come_largest_share_first() -> None:
    rows = regions_table(LOCKED["sample"]).rows
    assert [row[0] for row in rows] == ["mlp.down", "rope"]
    assert rows[0][3:] == ("75.0%", "1.500", "1.25", "gemv/split VEC=8")


def test_numbers_have_no_exponent_and_commas_between_thousands() -> None:
    assert [number(value) for value in (1.23456e6, 12.3456, 0.00012345, 0.0, None)] == [
        "1,234,560", "12.35", "0.0001234", "0", "-",
    ]  # fmt: skip


def test_markdown_shows_names_as_they_are() -> None:
    assert escaped("a|b <i> `c` *d* hf_eager _e_\n") == r"a\|b &lt;i&gt; \`c\` \*d\* hf_eager \_e\_ "
    assert "\x1b" not in escaped("\x1b[31m")


def test_every_plot_is_xml_with_the_names_of_all_arms_as_text(drawn: tuple[Plot, ...]) -> None:
    assert [plot.name for plot in drawn] == [
        "requests-sample-greedy", "speedup-sample-greedy", "latency-sample-greedy", "regions-sample", "waits-sample",
    ]  # fmt: skip
    for plot in drawn:
        shown = text_of(plot.svg)
        assert plot.title in shown
        assert "made up, 2 threads" in shown
        names = [*RATES, "llama.cpp", "vllm"] if not plot.name.startswith("regions") else ["rope", "mlp.down"]
        assert [name for name in names if name not in shown] == []


def test_plots_say_which_arms_are_missing_and_show_the_results_numbers(drawn: tuple[Plot, ...]) -> None:
    requests, speedup, latency, regions, waits = (text_of(plot.svg) for plot in drawn)
    assert "2.00×" in requests
    assert "4.00×" in speedup
    assert "absent" in speedup
    assert "failed: out of memory" in latency
    assert "1.25×" in regions
    assert "75.0%" in regions
    assert "2.00 s" in waits


def test_a_png_is_as_wide_as_asked_for(drawn: tuple[Plot, ...]) -> None:
    for plot in drawn:
        width, height = struct.unpack(">II", plot.png[16:24])
        assert plot.png.startswith(b"\x89PNG")
        assert width == WIDTH_IN * DPI
        assert 200 < height < 2000


def test_the_same_result_gives_the_same_bytes(drawn: tuple[Plot, ...]) -> None:
    assert draw(RESULT) == drawn


def test_speedups_far_apart_are_on_a_log_axis() -> None:
    pytest.importorskip("matplotlib")
    case = case_of()
    far = Interval(value=0.05, low=0.04, high=0.06, rounds=9)
    arms = tuple(replace(arm, speedup=far) if arm.name == "hf-compile" else arm for arm in case.arms)
    speedup = draw(result_of(replace(case, arms=arms)))[1]
    assert "log scale" in text_of(speedup.svg)
    assert "0.0500×" in text_of(speedup.svg)


def test_without_a_measured_arm_there_is_no_plot_and_still_a_report() -> None:
    pytest.importorskip("matplotlib")
    empty = result_of(replace(case_of(), arms=(ABSENT, FAILED), rounds=()))
    assert draw(empty) == ()
    assert "out of memory" in markdown(empty, {})
    assert markdown(result_of(), {}).startswith("# Suite cpu on made up")


def test_what_the_result_says_is_text_in_the_page_and_nothing_else(drawn: tuple[Plot, ...]) -> None:
    case = case_of(workload=EVIL, model=EVIL, missing=(replace(ABSENT, name=EVIL, reason=EVIL),))
    evil = replace(
        result_of(case, compiled={EVIL: LOCKED["sample"]}), suite=EVIL, command=EVIL, environment={EVIL: EVIL}
    )
    evil = replace(evil, machine=replace(MACHINE, device=f"{EVIL} $x$"))
    pictures = draw(evil)
    for plot in pictures:
        ElementTree.fromstring(plot.svg)
        assert re.fullmatch(r"[a-z0-9.-]+", plot.name)
    found, calm = Page(page(evil, pictures)), Page(page(RESULT, drawn))
    assert set(found.tags) <= set(calm.tags)
    assert "script" not in found.tags
    assert EVIL in found.text


def test_the_page_needs_nothing_beside_it(drawn: tuple[Plot, ...]) -> None:
    found = Page(page(RESULT, drawn))
    links = [value for name, value in found.attributes if name in ("src", "href", "xlink:href", "data", "srcset")]
    assert [link for link in links if not link.startswith("#")] == []
    ids = [value for name, value in found.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    assert {link[1:] for link in links} <= set(ids)
    assert found.tags.count("svg") == len(drawn)
    assert "@import" not in page(RESULT, drawn)
    assert "url(http" not in page(RESULT, drawn)


def test_plots_in_the_page_follow_its_theme(drawn: tuple[Plot, ...]) -> None:
    figure = page(RESULT, drawn).partition("<figure>")[2].partition("</figure>")[0]
    assert "var(--ink)" in figure
    assert plots.INK not in figure
    assert plots.PAPER not in figure


def test_the_report_is_a_folder_beside_the_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    write_result(tmp_path / "found.json", RESULT)
    assert run([str(tmp_path / "found.json")]) == ExitCode.OK
    folder = tmp_path / "found-report"
    said = capsys.readouterr()
    assert {Path(line) for line in said.out.splitlines()} == set(folder.iterdir())
    assert said.err.splitlines()[-1] == f"next: open {folder / 'report.html'} in a browser"
    text = (folder / "report.md").read_text(encoding="utf-8")
    shown = re.findall(r"!\[.*\]\((.*)\)", text)
    assert len(shown) == 4
    assert all((folder / name).exists() and (folder / name).with_suffix(".svg").exists() for name in shown)


def test_without_matplotlib_tables_and_page_are_written_and_a_line_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    write_result(tmp_path / "found.json", RESULT)
    assert run([str(tmp_path / "found.json"), "--out", str(tmp_path / "out")]) == ExitCode.OK
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["report.html", "report.md"]
    assert "svg" not in Page((tmp_path / "out" / "report.html").read_text(encoding="utf-8")).tags
    said = capsys.readouterr().out.splitlines()[-1]
    assert said.startswith("no plots: ")
    assert "pip install 'agentcompile[bench]'" in said


@pytest.mark.parametrize("content", [None, "no json", "{}"])
def test_an_unreadable_result_is_named(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "found.json"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    with pytest.raises(AgentCompileError, match=re.escape(str(path))) as caught:
        run([str(path)])
    assert caught.value.hint


def test_an_output_that_is_no_folder_is_named_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    write_result(tmp_path / "found.json", RESULT)
    (tmp_path / "taken").write_text("", encoding="utf-8")
    with pytest.raises(AgentCompileError, match=re.escape(f"--out {tmp_path / 'taken'}")) as caught:
        run([str(tmp_path / "found.json"), "--out", str(tmp_path / "taken")])
    assert "--out" in caught.value.hint


def test_importing_the_report_does_not_import_matplotlib() -> None:
    import subprocess

    code = (
        "import sys, agentcompile.bench.report.recipe; sys.exit('matplotlib' in sys.modules or 'torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
