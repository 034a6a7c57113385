"""The app on a real terminal: refusals, every way to end, colours, and what hostile text becomes there."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from recorded import event_dicts, run_directory
from terminals import LEAVE, Terminal, app

from agentcompile.runs.session import EVENTS

HOSTILE = (
    "\x1b]52;c;UFdORUQ=\x07",
    "\x1b]0;PWNED\x07",
    "\x1b]8;;http://PWNED\x1b\\link\x1b]8;;\x1b\\",
    "\x1bPPWNED\x1b\\",
    "\x9b31mPWNED",
    "\u202ePWNEDtxt.exe\u202c",
    "[/bold][red on blue]markup[/][",
    "W" * 10_000,
    "表表表\u0301\u0302\u0303\u0304",
    "\x00\x07\x08\r\n\t\x7f",
)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return run_directory(tmp_path / "run", "finished")


def headless(arguments: list[str], **more: str) -> subprocess.CompletedProcess[str]:
    env = {**{k: v for k, v in os.environ.items() if k != "CI"}, **more}
    return subprocess.run(
        app(*arguments), check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, env=env
    )


def test_without_a_terminal_it_names_the_headless_command(run: Path) -> None:
    done = headless(["bench/models/sample", "--seconds=60"])
    assert done.returncode == 2
    assert done.stdout == ""
    assert "standard input, output, error are no terminal" in done.stderr
    assert "headless: agentcompile compile bench/models/sample --seconds=60" in done.stderr
    assert f"agentcompile runs status {run}" in headless([str(run)]).stderr


@pytest.mark.parametrize(("name", "value", "said"), [("TERM", "dumb", "TERM is dumb"), ("CI", "true", "CI is set")])
def test_a_terminal_that_cannot_draw_or_nobody_watches_is_refused(run: Path, name: str, value: str, said: str) -> None:
    with Terminal(app(str(run)), env={name: value}) as terminal:
        assert terminal.end() == 2
    assert said in terminal.text
    assert b"\x1b[" not in terminal.bytes


def test_a_run_is_viewed_again_in_the_same_screens_where_there_is_a_terminal(run: Path) -> None:
    command = [sys.executable, "-m", "agentcompile", "runs", "view", str(run), "--speed=5000"]
    with Terminal(command) as terminal:
        terminal.until("again at 5000×")
        terminal.until("1 Regions")
        terminal.press("q")
        assert terminal.end() == 0
        assert terminal.restored
    with Terminal([*command, "--quiet"]) as terminal:
        assert terminal.end() == 0
    assert "1 Regions" not in terminal.text
    with Terminal(command, env={"CI": "true"}) as terminal:
        assert terminal.end() == 0
    assert "1 Regions" not in terminal.text


def test_latest_opens_the_run_that_was_started_last(tmp_path: Path) -> None:
    home = {"AGENTCOMPILE_HOME": str(tmp_path)}
    for name, upto in (("20260102-000000-a", None), ("20260101-000000-z", 3)):
        run_directory(tmp_path / "runs" / name, "finished", upto=upto)
    for more in ((), ("--speed=5000",)):
        with Terminal(app("latest", *more), env=home) as terminal:
            terminal.until("done" if not more else "again at 5000×")
            terminal.press("q")
            assert terminal.end() == 0
        assert "run 20260102-000000-a: done" in terminal.text
    assert "headless: agentcompile runs status latest" in headless(["latest"], **home).stderr


def test_an_argument_that_names_nothing_says_what_it_may_be(tmp_path: Path) -> None:
    with Terminal(app(str(tmp_path / "nothing"))) as terminal:
        assert terminal.end() == 2
    assert "no model, run or lock" in terminal.text


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)], ids=str
)
def test_a_signal_leaves_the_terminal_as_it_was(run: Path, number: signal.Signals, code: int) -> None:
    with Terminal(app(str(run))) as terminal:
        terminal.until("quit")
        terminal.signal(number)
        assert terminal.end() == code
        assert terminal.restored


def test_an_app_whose_terminal_is_gone_ends(run: Path) -> None:
    with Terminal(app(str(run))) as terminal:
        terminal.until("quit")
        terminal.hang_up()
        assert terminal.process.wait(20) == 129


@pytest.mark.alone
def test_leaving_by_key_leaves_the_terminal_as_it_was_in_under_a_second(run: Path) -> None:
    with Terminal(app(str(run))) as terminal:
        terminal.until("quit")
        terminal.press("q", pause_s=0)
        assert terminal.end(seconds=5.0) == 0
        assert terminal.restored
    after = terminal.bytes[terminal.bytes.rfind(LEAVE) :].decode()
    assert f"run {run.name}: done" in after
    assert f"attach: agentcompile tui {run}" in after
    assert "resume:" not in after  # it is done


def test_a_click_is_taken_from_a_real_terminal_and_the_mouse_is_let_go_afterwards(run: Path) -> None:
    with Terminal(app(str(run))) as terminal:
        terminal.until("1 Regions")
        terminal.mouse(14, 3)  # on the name of the second screen
        terminal.until("ratio to PyTorch")
        terminal.press("q")
        assert terminal.end() == 0
        assert terminal.restored
    for mode in (b"1000", b"1006"):
        assert terminal.bytes.rfind(b"\x1b[?" + mode + b"l") > terminal.bytes.rfind(b"\x1b[?" + mode + b"h") >= 0


def test_a_defect_leaves_the_terminal_as_it_was_and_two_lines(run: Path) -> None:
    code = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parent)!r})
from recorded import session
from agentcompile.cli.exits import guarded
from agentcompile.tui.app import CompilerApp
from agentcompile.tui.ink import Ink

def main():
    one = session(Path({str(run)!r}))
    def broken(*args): raise RuntimeError("a planted defect")
    one.key = broken
    app = CompilerApp(session=one, start=None, open=lambda page: "", ink=Ink())
    app.run(mouse=False)
    raise app.fault
sys.exit(guarded(main))
"""
    with Terminal([sys.executable, "-c", code]) as terminal:
        terminal.until("quit")
        terminal.press("j")
        assert terminal.end() == 1
        assert terminal.restored
    tail = terminal.text[terminal.text.rfind("error:") :]
    assert "a planted defect" in tail
    assert len(tail.strip().splitlines()) <= 3


def spoiled(value: object, number: list[int]) -> object:
    """Every text of an event with something hostile before and after it; names that must stay names stay."""
    if isinstance(value, dict):
        kept = ("kind", "region", "candidate", "phase", "stage", "template", "digest", "grade", "comparison")
        fixed = (*kept, "residency", "fidelity", "severity", "decided_by", "regime", "initial", "reason_kind")
        return {k: v if k in fixed and isinstance(v, str) else spoiled(v, number) for k, v in value.items()}
    if isinstance(value, list):
        return [spoiled(item, number) for item in value]
    if isinstance(value, str) and value and not re.fullmatch(r"[0-9a-f]{64}", value):
        number[0] += 1
        return HOSTILE[number[0] % len(HOSTILE)] + value + HOSTILE[(number[0] * 7) % len(HOSTILE)]
    return value


@pytest.mark.parametrize("size", [(80, 24), (160, 48)])
def test_hostile_text_reaches_no_terminal_raw(tmp_path: Path, size: tuple[int, int]) -> None:
    run = run_directory(tmp_path / "run", "finished")
    number = [0]
    lines = []
    for seq, found in enumerate(event_dicts("finished")):
        event = found
        if event["kind"] in ("run-started", "region-found", "advised", "space-bounded", "boundary-found", "warned"):
            told = spoiled(event, number)
            assert isinstance(told, dict)
            event = told | {name: event[name] for name in ("target",) if name in event}
        elif event["kind"] in ("stage-finished", "run-failed", "run-finished"):
            event = event | {name: "".join(HOSTILE) for name in ("detail", "message", "hint") if name in event}
        lines.append(json.dumps({"seq": seq, "at_ms": 1_700_000_000_000 + seq, "event": event}))
    lines.append(json.dumps({"seq": 9999, "at_ms": 1, "event": {"kind": "warned", "text": "".join(HOSTILE)}}))
    (run / EVENTS).write_text("\n".join(lines) + "\n")
    (run / "compiler.stderr").write_bytes("\n".join(HOSTILE).encode("utf-8", "surrogatepass") + b"\xff\xfe\n")
    with Terminal(app(str(run)), columns=size[0], rows=size[1]) as terminal:
        terminal.until("quit")
        for mode in "12345":
            terminal.press(f"{mode}jj\r\x1b", pause_s=0.15)
        terminal.press("?", pause_s=0.3)
        terminal.press("\x1b", pause_s=0.3)
        terminal.press("q")
        assert terminal.end() == 0
        assert terminal.restored
    raw = terminal.bytes
    assert b"[/bold][red" in raw
    for planted in (
        b"\x1b]52",
        b"UFdORUQ",
        b"\x1b]0;",
        b"\x1b]8",
        b"\x1bP",
        b"\x9b31",
        "\u202e".encode(),
        b"\x00",
        b"\x7f",
    ):
        assert planted not in raw.replace(b"\x1bP>|", b""), planted
    # What our own toolkit says in a string sequence: the shape of the pointer, and nothing else.
    strings = re.findall(rb"\x1b\]([^\x07\x1b]*)", raw)
    assert all(text.startswith(b"22;") for text in strings), strings


def test_without_colour_no_colour_is_sent(run: Path) -> None:
    with Terminal(app(str(run)), env={"NO_COLOR": "1"}) as terminal:
        terminal.until("quit")
        terminal.press("235q", pause_s=0.3)
        assert terminal.end() == 0
    colours = [code for sgr in re.findall(rb"\x1b\[([\d;]*)m", terminal.bytes) for code in sgr.split(b";")]
    assert colours
    assert not [code for code in colours if code and 30 <= int(code) <= 107 and code not in (b"39", b"49")]


def test_a_locale_without_utf_8_gets_ascii(run: Path) -> None:
    with Terminal(app(str(run)), env={"LC_ALL": "C"}) as terminal:
        terminal.until("quit")
        terminal.press("123q", pause_s=0.3)
        assert terminal.end() == 0
    assert terminal.bytes.isascii()


def test_the_app_never_imports_what_is_heavy(run: Path) -> None:
    code = """
import sys
from agentcompile.tui import app, cli, compiler, finding, opening, session, source
heavy = {"torch", "numpy", "transformers", "triton", "tokenizers", "safetensors", "pydantic"}
print(sorted(heavy & {name.partition(".")[0] for name in sys.modules}))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
