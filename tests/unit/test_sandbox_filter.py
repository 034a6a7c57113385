"""The filter of system calls, run as the kernel runs it, for both processors; what a fence and the methods say."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from agentcompile.cli.doctor import containment
from agentcompile.ir.codec import decode, encode
from agentcompile.options import passed_on
from agentcompile.sandbox import Fence, Method, for_worker
from agentcompile.sandbox import syscalls as sys_
from agentcompile.sandbox.landlock import Access, handled
from agentcompile.sandbox.seccomp import Instruction, Rule, computing, placing, program, rules
from agentcompile.sandbox.syscalls import Machine

ALLOW, ERROR, KILL = 0x7FFF0000, 0x00050000, 0x80000000
PID = 4242


def runs(made: Sequence[Instruction], *, number: int, arguments: Sequence[int] = (), processor: int) -> int:
    """What the kernel makes of a call: a small interpreter of the instructions that filters have."""
    words = {0: number, 4: processor, **{16 + 8 * at: value & 0xFFFFFFFF for at, value in enumerate(arguments)}}
    accumulator = at = 0
    while True:
        code, yes, no, value = made[at]
        at += 1
        match code:
            case 0x20:
                accumulator = words.get(value, 0)
            case 0x54:
                accumulator &= value
            case 0x15:
                at += yes if accumulator == value else no
            case 0x35:
                at += yes if accumulator >= value else no
            case 0x05:
                at += value
            case 0x06:
                return value
            case _:
                raise AssertionError(code)


def verdict(on: Machine, call: str, *arguments: int, programs: bool = False, devices: bool = False) -> int:
    """0 when the call is allowed, else its error number."""
    made = program(rules(pid=PID, programs=programs, devices=devices), on)
    found = runs(made, number=sys_.number(call, on), arguments=arguments, processor=sys_.AUDIT[on])
    assert found == ALLOW or found & 0xFFFF0000 == ERROR
    return 0 if found == ALLOW else found & 0xFFFF


MACHINES: tuple[Machine, ...] = ("x86_64", "aarch64")
THREAD = 0x3D0F00


@pytest.mark.parametrize("on", MACHINES)
@pytest.mark.parametrize(
    ("call", "arguments", "error"),
    [
        ("socket", (2, 1, 0), errno.EPERM),
        ("ptrace", (), errno.EPERM),
        ("execve", (), errno.EPERM),
        ("clone", (THREAD,), 0),
        ("clone", (17,), errno.EPERM),
        ("clone", (THREAD | 0x10000000,), errno.EPERM),
        ("clone3", (), errno.ENOSYS),
        ("kill", (PID, 9), 0),
        ("kill", (0, 9), 0),
        ("kill", (PID - 1, 9), errno.EPERM),
        ("kill", (-1, 9), errno.EPERM),
        ("tgkill", (PID, PID + 1, 6), 0),
        ("tgkill", (1, 1, 9), errno.EPERM),
        ("prlimit64", (0, 7), 0),
        ("prlimit64", (1, 7), errno.EPERM),
        ("fcntl", (3, 3), 0),
        ("fcntl", (3, 8), errno.EPERM),
        ("fcntl", (3, 15), errno.EPERM),
        ("ioctl", (0, 0x5412), errno.EPERM),
        ("ioctl", (0, 0x5401), 0),
        ("mmap", (0, 4096, 1, 0x22), 0),
        ("mmap", (0, 4096, 1, 0x01), 0),
        ("mmap", (0, 4096, 1, 0x21), errno.EPERM),
        ("mmap", (0, 4096, 1, 0x4021), errno.EPERM),
        ("mmap", (0, 4096, 3, 0x122), errno.EPERM),
        ("prctl", (1, 0), errno.EPERM),
        ("prctl", (15, 0), 0),
        ("memfd_create", (), errno.EPERM),
        ("sched_setaffinity", (PID + 5,), 0),
    ],
)
def test_a_worker_is_refused_what_reaches_others(
    on: Machine, call: str, arguments: tuple[int, ...], error: int
) -> None:
    assert verdict(on, call, *arguments) == error


@pytest.mark.parametrize("on", MACHINES)
def test_a_compiler_has_children_and_no_namespaces(on: Machine) -> None:
    assert verdict(on, "execve", programs=True) == 0
    assert verdict(on, "clone", 17, programs=True) == 0
    assert verdict(on, "clone", 17 | 0x20000, programs=True) == errno.EPERM
    assert verdict(on, "socket", programs=True) == errno.EPERM


@pytest.mark.parametrize("on", MACHINES)
def test_a_device_shares_memory_with_its_process(on: Machine) -> None:
    assert verdict(on, "mmap", 0, 4096, 1, 0x21, devices=True) == 0
    assert verdict(on, "memfd_create", devices=True) == 0


@pytest.mark.parametrize("on", MACHINES)
def test_a_driver_offers_a_socket_within_the_machine_and_nobody_connects(on: Machine) -> None:
    assert verdict(on, "socket", 1, 1, 0, devices=True) == 0
    assert [verdict(on, call, devices=True) for call in ("bind", "listen")] == [0, 0]
    assert verdict(on, "socket", 2, 1, 0, devices=True) == errno.EPERM
    for call in ("connect", "accept", "accept4", "socketpair"):
        assert verdict(on, call, devices=True) == errno.EPERM
    for call in ("socket", "bind", "listen"):
        assert verdict(on, call, 1) == errno.EPERM


@pytest.mark.parametrize("on", MACHINES)
def test_once_threads_are_placed_the_main_one_alone_moves(on: Machine) -> None:
    made, number = program(placing(PID), on), sys_.number("sched_setaffinity", on)
    found = [runs(made, number=number, arguments=(who,), processor=sys_.AUDIT[on]) for who in (0, PID, 1)]
    assert found == [ALLOW, ALLOW, ERROR | errno.EPERM]


@pytest.mark.parametrize("on", MACHINES)
@pytest.mark.parametrize(
    ("call", "arguments", "refused"),
    [
        ("clone", (THREAD,), True),
        ("mprotect", (0, 4096, 3), False),
        ("mprotect", (0, 4096, 5), True),
        ("mprotect", (0, 4096, 7), True),
        ("pkey_mprotect", (0, 4096, 4), True),
        ("mmap", (0, 4096, 5), False),
        ("mmap", (0, 4096, 3), False),
        ("mmap", (0, 4096, 7), True),
        ("mremap", (0, 4096, 8192, 1), False),
        ("mremap", (0, 4096, 4096, 3), True),
        ("read", (), False),
    ],
)
def test_a_process_that_only_computes_gets_no_thread_and_no_new_code(
    on: Machine, call: str, arguments: tuple[int, ...], refused: bool
) -> None:
    number = 0 if call == "read" else sys_.number(call, on)
    found = runs(program(computing(), on), number=number, arguments=arguments, processor=sys_.AUDIT[on])
    assert found == (ERROR | errno.EPERM if refused else ALLOW)


@pytest.mark.parametrize("on", MACHINES)
def test_calls_of_other_processors_end_the_process_and_unknown_ones_do_not_exist(on: Machine) -> None:
    made = program(rules(pid=PID, programs=False, devices=False), on)
    other = next(one for one in MACHINES if one != on)
    assert runs(made, number=1, processor=sys_.AUDIT[other]) == KILL
    assert runs(made, number=1, processor=0x40000003) == KILL  # 32-bit x86
    assert runs(made, number=sys_.NEWEST + 1, processor=sys_.AUDIT[on]) == ERROR | errno.ENOSYS
    x32 = runs(made, number=sys_.X32_BIT | 1, processor=sys_.AUDIT[on])
    assert x32 == ERROR | (errno.EPERM if on == "x86_64" else errno.ENOSYS)


def test_no_jump_is_longer_than_an_instruction_can_say() -> None:
    for on in MACHINES:
        made = program(rules(pid=PID, programs=False, devices=False), on)
        assert all(max(yes, no) < 256 for _, yes, no, _ in made)
        assert len(made) < 4096


def test_a_rule_without_values_of_an_argument_refuses_by_its_error() -> None:
    made = program((Rule(call="ptrace", error=errno.ENOSYS),), "x86_64")
    assert runs(made, number=101, processor=sys_.AUDIT["x86_64"]) == ERROR | errno.ENOSYS


def test_rights_are_those_that_the_kernel_s_version_knows() -> None:
    assert Access.REFER not in handled(1)
    assert Access.REFER in handled(2)
    assert Access.TRUNCATE in handled(3)
    assert Access.IOCTL_DEV in handled(7)
    assert Access.MAKE_SYM | Access.EXECUTE in handled(1)


def test_a_fence_goes_through_json_unchanged(tmp_path: Path) -> None:
    fence = replace(for_worker(tmp_path, readable=[tmp_path], memory_bytes=5), wall_s=1.5, executable=("/bin/true",))
    assert decode(Fence, encode(fence)) == fence


def test_a_worker_reads_python_and_neither_homes_nor_settings(tmp_path: Path) -> None:
    fence = for_worker()
    assert fence.writable == ()
    assert fence.executable == ()
    assert not {"/", "/etc", "/home", "/root", "/tmp", "/proc", "/usr", "/usr/bin"} & set(fence.readable)
    assert str(Path.home()) not in fence.readable


def test_confined_processes_get_paths_and_settings_of_libraries_alone() -> None:
    given = {
        "PATH": "/bin", "OMP_NUM_THREADS": "2", "CUDA_VISIBLE_DEVICES": "0", "OPENAI_API_KEY": "s", "HOME": "/root",
        "CUDA_SECRET": "s", "AWS_SESSION_TOKEN": "s", "LD_PRELOAD": "x.so", "PYTHONPATH": "/tmp",
    }  # fmt: skip
    assert sorted(passed_on(given)) == ["CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "PATH"]


def test_the_doctor_says_what_works_in_one_row() -> None:
    whole = [Method(name="landlock", needed=True), Method(name="seccomp", needed=True)]
    users = Method(name="namespaces", needed=False, problem="switched off")
    assert containment([*whole, Method(name="namespaces", needed=False)]).value == "landlock, seccomp, namespaces"
    some = containment([*whole, users])
    assert (some.state, some.value, some.remedy) == ("warning", "landlock, seccomp", "namespaces: switched off")
    none = containment([Method(name="landlock", needed=True, problem="old kernel"), whole[1], users])
    assert none.state == "warning"
    assert none.value == "seccomp: nothing can be confined"
    assert "--unsafe" in none.remedy
