from __future__ import annotations

import contextlib
import io
import json
import lzma
import os
import random
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from runs import REGION, TARGET, WHOLE, trial

from agentcompile.advice.exchange import Cassette, Exchange
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.evaluation.step_clock import policy_digest
from agentcompile.events import TrialFinished
from agentcompile.interchange.archive import ABOUT, FACTS, LIMITS, NAMES, TarballLimits, pack, read, unpack
from agentcompile.ir.advice import Usage
from agentcompile.ir.codec import encode
from agentcompile.ir.digest import digest
from agentcompile.ir.target import Ceiling
from agentcompile.options import Options
from agentcompile.runs.session import EVENTS, OPTIONS, Journal, RunDirectory
from agentcompile.system import probe
from agentcompile.system.notes import Notes
from agentcompile.system.store import Store
from agentcompile.tuning.trial_database import accepted_key

CEILING = Ceiling(dram_bytes_per_s=2e10, cache_bytes_per_s=2e11, flops_per_s=1e11)
FALLBACK = digest("fallback/1", REGION, TARGET.digest, policy_digest("cache"))
ACCEPTED = accepted_key("s", REGION, TARGET.digest)

Edit = Callable[[dict[str, bytes]], object]


@pytest.fixture
def options(tmp_path: Path) -> Options:
    return Options(model="/there/sample", out="/there/x.lock.toml", home=str(tmp_path / "home"), budget=7)


@pytest.fixture
def run(tmp_path: Path, options: Options) -> RunDirectory:
    """A run with the facts that it would leave in its store, and one of another run."""
    made = RunDirectory.create(tmp_path / "home/runs/20260101-sample", encode(options))
    with Journal(made) as journal:
        for event in WHOLE:
            journal.append(event)
    store = Store(options.store)
    probe.ceiling(TARGET, store, lambda: CEILING)
    for key, value in ((FALLBACK, 1650), (ACCEPTED, 1), (digest("fallback/1", "another"), 5)):
        Notes(store).put(key, value)
    return made


@pytest.fixture
def packed(run: RunDirectory, options: Options, tmp_path: Path) -> Path:
    return pack(run, options, tmp_path / "x.run.tar.xz").file


def test_a_run_comes_back_as_it_was(run: RunDirectory, options: Options, packed: Path, tmp_path: Path) -> None:
    contents = read(packed)
    assert (contents.name, contents.options) == ("20260101-sample", options)
    moved = replace(options, model="/here/sample", home=str(tmp_path / "other"))
    back = unpack(contents, tmp_path / "other/runs/back", moved)
    assert (back.path / EVENTS).read_bytes() == (run.path / EVENTS).read_bytes()
    assert back.options() == encode(moved)
    assert back.state() == run.state()
    assert sorted(path.name for path in back.path.parent.iterdir()) == ["back"], "nothing half-made is left"
    with Journal(back) as journal:
        journal.append(TrialFinished(trial=trial(8)))
    assert [record.seq for record, _ in back.records()] == list(range(len(WHOLE) + 1))


def test_facts_of_the_run_travel_and_those_of_others_do_not(packed: Path, options: Options, tmp_path: Path) -> None:
    moved = replace(options, home=str(tmp_path / "other"))
    assert sorted(read(packed).facts.notes) == sorted((FALLBACK, ACCEPTED))
    unpack(read(packed), tmp_path / "back", moved)
    notes = Notes(Store(moved.store))
    assert (notes.get(FALLBACK), notes.get(ACCEPTED)) == (1650, 1)

    def unasked() -> Ceiling:
        raise AssertionError("the ceilings came with the run")

    assert probe.ceiling(TARGET, Store(moved.store), unasked) == CEILING


def test_what_this_place_knows_already_stays(packed: Path, options: Options, tmp_path: Path) -> None:
    moved = replace(options, home=str(tmp_path / "other"))
    Notes(Store(moved.store)).put(FALLBACK, 1700)
    unpack(read(packed), tmp_path / "back", moved)
    assert Notes(Store(moved.store)).get(FALLBACK) == 1700


def test_the_same_run_gives_the_same_bytes(run: RunDirectory, options: Options, packed: Path, tmp_path: Path) -> None:
    os.utime(run.path / EVENTS, (1, 1))
    assert pack(run, options, tmp_path / "again").file.read_bytes() == packed.read_bytes()
    with tarfile.open(packed) as tar:
        members = tar.getmembers()
    assert [member.name for member in members] == sorted(NAMES)
    assert {(member.mtime, member.uid, member.gid, member.uname) for member in members} == {(0, 0, 0, "")}


def test_an_event_that_was_not_acknowledged_stays_behind(run: RunDirectory, options: Options, tmp_path: Path) -> None:
    whole = (run.path / EVENTS).read_bytes()
    (run.path / EVENTS).write_bytes(whole + b'{"seq":17,"at')
    assert read(pack(run, options, tmp_path / "x").file).events == whole


def test_a_run_without_events_or_a_store_is_packed_too(options: Options, tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "a b!", encode(options))
    contents = read(pack(run, options, tmp_path / "x").file)
    assert (contents.name, contents.events, contents.facts.notes) == ("a-b", b"", {})
    assert unpack(contents, tmp_path / "back", options).state().status == "waiting"


def test_a_run_that_a_compiler_holds_is_not_packed(run: RunDirectory, options: Options, tmp_path: Path) -> None:
    with Journal(run), pytest.raises(AgentCompileError, match="a compiler runs here") as caught:
        pack(run, options, tmp_path / "x")
    assert caught.value.exit_code is ExitCode.ENVIRONMENT
    assert not (tmp_path / "x").exists()


def test_a_run_with_a_damaged_event_is_not_packed(run: RunDirectory, options: Options, tmp_path: Path) -> None:
    (run.path / EVENTS).write_bytes(b"{}\n")
    with pytest.raises(AgentCompileError, match=r"events\.jsonl"):
        pack(run, options, tmp_path / "x")


def test_a_run_that_does_not_fit_says_what_is_large(run: RunDirectory, options: Options, tmp_path: Path) -> None:
    with pytest.raises(AgentCompileError, match=r"packed.*100 B; what is large is events\.jsonl") as caught:
        pack(run, options, tmp_path / "x", limits=TarballLimits(packed_bytes=100))
    assert "copy the run's folder" in caught.value.hint
    with pytest.raises(AgentCompileError, match="unpacked"):
        pack(run, options, tmp_path / "x", limits=TarballLimits(unpacked_bytes=200))
    assert not (tmp_path / "x").exists()


def test_a_directory_is_no_place_for_a_pack(run: RunDirectory, options: Options, tmp_path: Path) -> None:
    with pytest.raises(AgentCompileError, match="a directory, not a file") as caught:
        pack(run, options, tmp_path)
    assert caught.value.exit_code is ExitCode.USAGE


def test_a_place_that_cannot_be_written_is_an_environment_error(
    run: RunDirectory, options: Options, packed: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    for call in (
        lambda: pack(run, options, tmp_path / "file/x"),
        lambda: unpack(read(packed), tmp_path / "file/run", options),
    ):
        with pytest.raises(AgentCompileError) as caught:
            call()
        assert caught.value.exit_code is ExitCode.ENVIRONMENT


def test_a_run_or_anything_else_is_not_written_over(run: RunDirectory, options: Options, packed: Path) -> None:
    before = (run.path / EVENTS).read_bytes()
    with pytest.raises(AgentCompileError, match="already holds a run") as caught:
        unpack(read(packed), run.path, options)
    assert "--run-dir" in caught.value.hint
    assert (run.path / EVENTS).read_bytes() == before
    for taken in (run.path.parent, packed):
        with pytest.raises(AgentCompileError, match="is in use"):
            unpack(read(packed), taken, options)


def test_an_empty_folder_may_become_a_run(options: Options, packed: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert unpack(read(packed), tmp_path / "empty", options).state().status == "finished"


# What is refused. Each archive is written by hand, so that nothing of `pack` stands between it and `read`.


def files(packed: Path) -> dict[str, bytes]:
    with tarfile.open(packed) as tar:
        return {member.name: (tar.extractfile(member) or io.BytesIO()).read() for member in tar.getmembers()}


def tar_of(files: Mapping[str, bytes], *more: tarfile.TarInfo) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        for info in more:
            tar.addfile(info)
    return made.getvalue()


def refused(data: bytes, folder: Path, limits: TarballLimits = LIMITS) -> AgentCompileError:
    """The error that reading `data` as an archive gives; it names the file and has a remedy, and nothing is written."""
    file = folder / "hostile.run.tar.xz"
    file.write_bytes(data)
    before = sorted(folder.rglob("*"))
    with pytest.raises(AgentCompileError) as caught:
        read(file, limits=limits)
    assert str(file) in caught.value.message
    assert caught.value.hint
    assert caught.value.exit_code is ExitCode.USAGE
    assert sorted(folder.rglob("*")) == before
    return caught.value


def info(name: str, type: bytes = tarfile.REGTYPE, linkname: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname = type, linkname
    return made


@pytest.mark.parametrize(
    ("member", "words"),
    [
        (info("/etc/passwd"), "leads out"),
        (info("../options.json"), "leads out"),
        (info("a/../../b"), "leads out"),
        (info("link", tarfile.SYMTYPE, "/etc/passwd"), "no plain file"),
        (info("link", tarfile.LNKTYPE, OPTIONS), "no plain file"),
        (info("folder", tarfile.DIRTYPE), "no plain file"),
        (info("pipe", tarfile.FIFOTYPE), "no plain file"),
        (info("device", tarfile.CHRTYPE), "no plain file"),
        (info("x", tarfile.XHDTYPE), "no plain file"),
        (info("x", tarfile.GNUTYPE_LONGNAME), "no plain file"),
        (info("x", tarfile.GNUTYPE_SPARSE), "no plain file"),
        (info("crash.txt"), "not of a packed run"),
        (info(OPTIONS), "a file more"),
    ],
)
def test_a_member_that_no_packed_run_has_is_refused(
    member: tarfile.TarInfo, words: str, packed: Path, tmp_path: Path
) -> None:
    data = lzma.compress(tar_of(files(packed), member))
    assert words in refused(data, tmp_path).message


def test_crowds_of_members_are_refused(packed: Path, tmp_path: Path) -> None:
    more = [info(f"file{at}") for at in range(10_000)]
    assert "a file more" in refused(lzma.compress(tar_of(files(packed), *more)), tmp_path).message


def test_a_file_that_declares_more_than_is_allowed_is_refused(packed: Path, tmp_path: Path) -> None:
    for size in (1 << 40, LIMITS.unpacked_bytes + 1, -512):
        member = info("big")
        member.size = size
        header = member.tobuf(tarfile.GNU_FORMAT)
        assert "declares" in refused(lzma.compress(header + bytes(1024)), tmp_path).message


def test_an_archive_that_unpacks_to_more_than_is_allowed_is_refused(tmp_path: Path) -> None:
    bomb = lzma.compress(bytes(64 << 20), preset=0)
    assert len(bomb) < 1 << 20
    assert "unpacks to more" in refused(bomb, tmp_path, TarballLimits(unpacked_bytes=1 << 20)).message


def test_an_archive_that_wants_much_memory_is_refused(tmp_path: Path) -> None:
    filters = [{"id": lzma.FILTER_LZMA2, "dict_size": 512 << 20, "preset": 0}]
    assert "damaged" in refused(lzma.compress(b"x" * 2000, filters=filters), tmp_path).message


def test_a_file_that_is_larger_than_any_archive_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "hostile.run.tar.xz").open("wb") as file:
        file.truncate(LIMITS.packed_bytes + 1)
    assert "at most" in refused(bytes(LIMITS.packed_bytes + 1), tmp_path).message


def test_every_cut_and_most_flipped_bits_are_refused(packed: Path, tmp_path: Path) -> None:
    whole, rng = packed.read_bytes(), random.Random(1)
    for length in sorted({0, 1, 5, 6, 11, 12, len(whole) - 1, *rng.sample(range(len(whole)), 40)}):
        refused(whole[:length], tmp_path)
    for at in rng.sample(range(len(whole)), 60):
        refused(whole[:at] + bytes([whole[at] ^ (1 << rng.randrange(8))]) + whole[at + 1 :], tmp_path)
    refused(whole + b"x", tmp_path)


def test_every_cut_and_flipped_bit_inside_the_tar_is_refused_or_read(packed: Path, tmp_path: Path) -> None:
    """No bytes make the reader raise anything else."""
    tar, rng = tar_of(files(packed)), random.Random(2)
    file = tmp_path / "hostile.run.tar.xz"
    for _ in range(150):
        at = rng.randrange(len(tar))
        made = tar[:at] + bytes([rng.randrange(256)]) + tar[at + 1 :] if rng.random() < 0.7 else tar[:at]
        file.write_bytes(lzma.compress(made, preset=0))
        with contextlib.suppress(AgentCompileError):
            read(file)


def about(**fields: object) -> bytes:
    return json.dumps({"version": 1, "name": "x", "agentcompile": "0", **fields}).encode()


def without(name: str) -> Edit:
    return lambda files: files.pop(name)


def with_text(name: str, text: bytes) -> Edit:
    return lambda files: files.update({name: text})


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (with_text(ABOUT, about(version=2, name=3)), "version: 2 is newer"),
        (with_text(ABOUT, about(version="1")), "has no version"),
        (with_text(ABOUT, b"[]"), "has no version"),
        (with_text(ABOUT, b"{"), ABOUT),
        (with_text(ABOUT, about(name="../x")), "no name of a run"),
        (with_text(ABOUT, about(name=".hidden")), "no name of a run"),
        (with_text(ABOUT, about(name=None)), "no name of a run"),
        (without(ABOUT), "no archive of a run"),
        (without(OPTIONS), "'options.json': missing"),
        (without(FACTS), "'facts.json': missing"),
        (with_text(OPTIONS, b"{}"), "options.json: version: missing"),
        (with_text(OPTIONS, b'{"version":99,"options":{}}'), "99 is newer"),
        (with_text(OPTIONS, b'{"version":1,"options":{"colour":"red"}}'), "options.json.colour: unknown key"),
        (with_text(OPTIONS, b'{"version":1,"options":{"budget":"many"}}'), "options.json.budget: expected int"),
        (with_text(OPTIONS, b"\xff"), "options.json: unreadable"),
        (with_text(OPTIONS, b'{"version":1,"options":' + b"[" * 100_000), "nested deeper"),
        (with_text(EVENTS, b'{"seq":0}\n'), "events.jsonl: a line is no event"),
        (with_text(EVENTS, b"\xff\xfe\n"), "events.jsonl: a line is no event"),
        (with_text(EVENTS, b"{}"), "events.jsonl: cut off"),
        (with_text(EVENTS, b"[" * 100_000 + b"\n"), "nested deeper"),
        (with_text(FACTS, b"[]"), "facts.json: expected a table"),
        (with_text(FACTS, b'{"notes":{"a":"b"}}'), "facts.json.notes.a: expected int"),
        (with_text(FACTS, b'{"notes":{"a":-1}}'), "-1 is not positive"),
        (
            with_text(FACTS, json.dumps({"ceilings": {"a": encode(replace(CEILING, flops_per_s=0.0))}}).encode()),
            "are no rates",
        ),
        (
            with_text(FACTS, json.dumps({"ceilings": {"a": encode(replace(CEILING, flops_per_s=1e999))}}).encode()),
            "are no rates",
        ),
    ],
)
def test_content_that_is_no_run_is_refused(edit: Edit, words: str, packed: Path, tmp_path: Path) -> None:
    parts = files(packed)
    edit(parts)
    assert words in refused(lzma.compress(tar_of(parts), preset=0), tmp_path).message


def test_a_newer_version_with_more_files_is_called_newer(packed: Path, tmp_path: Path) -> None:
    parts = {**files(packed), ABOUT: about(version=2), "sources.json": b"{}"}
    error = refused(lzma.compress(tar_of(parts)), tmp_path)
    assert "newer" in error.message
    assert "install the agentcompile that packed it" in error.hint


@pytest.mark.parametrize("data", [b"", b"text", b"\x1f\x8b\x08\x00", lzma.compress(b""), lzma.compress(bytes(10_240))])
def test_what_is_no_archive_is_refused(data: bytes, tmp_path: Path) -> None:
    refused(data, tmp_path)


def test_a_name_that_is_no_file_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none", Path(os.devnull)):
        with pytest.raises(AgentCompileError, match=r"no such file|not a file") as caught:
            read(path)
        assert "runs pack" in caught.value.hint


def test_facts_under_other_keys_do_not_enter_the_store(packed: Path, options: Options, tmp_path: Path) -> None:
    """An archive cannot vouch for kernels that its run never evaluated."""
    foreign = accepted_key("another source", REGION, TARGET.digest)
    facts = {"notes": {foreign: 1, "../../x": 1}, "ceilings": {digest("ceiling/1", "another"): encode(CEILING)}}
    file = tmp_path / "hostile"
    file.write_bytes(lzma.compress(tar_of({**files(packed), FACTS: json.dumps(facts).encode()})))
    moved = replace(options, home=str(tmp_path / "other"))
    unpack(read(file), tmp_path / "back", moved)
    assert [path for path in Path(moved.store).rglob("*") if path.is_file()] == []


def test_exchanges_with_an_adviser_travel(run: RunDirectory, options: Options, tmp_path: Path) -> None:
    exchange = Exchange(
        keys={"r1": "k"}, model="m", rung="text", system="s", user="u", answer="a", usage=Usage(calls=1), at_ms=1
    )
    Cassette(run.path / "advice").keep(exchange)
    contents = read(pack(run, options, tmp_path / "x").file)
    assert contents.facts.exchanges == (exchange,)
    back = unpack(contents, tmp_path / "back", replace(options, home=str(tmp_path / "other")))
    assert Cassette(back.path / "advice").exchanges == {exchange.digest: exchange}
