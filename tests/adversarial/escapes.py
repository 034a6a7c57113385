"""Kernels that try to get out: each attempt returns 0 when it works, else the error number, or a count that it reached.

All of them run in one launch, on one rank, and end the process with a table of what they got. Those that would harm are
bounded: few children, which leave at once, little memory, small files, signals that only ask.
"""

from __future__ import annotations

from dataclasses import dataclass

EPERM, ENOENT, EAGAIN, ENOMEM, EACCES, EXDEV, EINVAL, ENOTTY, EFBIG, ENOSPC, ENOSYS = (
    1, 2, 11, 12, 13, 18, 22, 25, 27, 28, 38,
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Escape:
    """An attempt in C++, with what it gets behind the fence and without one."""

    name: str
    code: str
    fenced: int
    free: int = 0


def reads(path: str) -> str:
    return f"return opened({path}, O_RDONLY);"


def says(call: str) -> str:
    """An attempt that is one call, which returns a negative number and sets errno, or works."""
    return f"return ({call}) < 0 ? errno : 0;"


ESCAPES = (
    # Files. HOME, OUTSIDE, SCRATCH and STORE are paths of the test.
    Escape(name="reads the system's accounts", code=reads('"/etc/passwd"'), fenced=EACCES),
    Escape(name="reads the home folder", code=reads('HOME "/secret"'), fenced=EACCES),
    Escape(name="lists the home folder", code="return opened(HOME, O_RDONLY | O_DIRECTORY);", fenced=EACCES),
    Escape(name="writes outside", code='return opened(OUTSIDE "/new", O_CREAT | O_WRONLY);', fenced=EACCES),
    Escape(name="changes a file outside", code='return opened(OUTSIDE "/file", O_WRONLY | O_TRUNC);', fenced=EACCES),
    Escape(name="deletes a file outside", code=says('unlink(OUTSIDE "/doomed")'), fenced=EACCES),
    Escape(name="makes a file outside executable", code=says('chmod(OUTSIDE "/file", 0755)'), fenced=EPERM),
    Escape(name="changes the store", code='return opened(STORE "/planted", O_CREAT | O_WRONLY);', fenced=EACCES),
    Escape(
        name="changes its own binary in the store",
        code="Dl_info info; dladdr((void*)&opened, &info); return opened(info.dli_fname, O_WRONLY);",
        fenced=EACCES,
    ),
    Escape(
        name="leaves its scratch through a link",
        code='if (symlink(HOME "/secret", SCRATCH "/way")) return errno; ' + reads('SCRATCH "/way"'),
        fenced=EACCES,
    ),
    Escape(name="leaves its scratch upwards", code=reads('SCRATCH "/../outside/file"'), fenced=EACCES),
    Escape(name="links a file into its scratch", code=says('link(OUTSIDE "/file", SCRATCH "/hard")'), fenced=EXDEV),
    Escape(name="goes through its own root", code=reads('"/proc/self/root/etc/passwd"'), fenced=EACCES),
    Escape(
        name="maps a program elsewhere",
        code="""
            int file = open("/bin/sh", O_RDONLY);
            if (file < 0) return errno;
            void* at = mmap(nullptr, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, file, 0);
            close(file);
            return at == MAP_FAILED ? errno : (munmap(at, 4096), 0);
        """,
        fenced=EACCES,
    ),
    Escape(
        name="fills the disk with files",
        code="""
            static char block[1 << 20];
            int error = 0;
            for (int i = 0; i < 8 && !error; ++i) {
                std::string name = std::string(SCRATCH "/fill") + char('0' + i);
                int file = open(name.c_str(), O_CREAT | O_WRONLY, 0600);
                for (int j = 0; file >= 0 && j < 4 && !error; ++j)
                    if (write(file, block, sizeof block) != sizeof block) error = errno ? errno : ENOSPC;
                if (file < 0) error = errno; else close(file);
            }
            for (int i = 0; i < 8; ++i) unlink((std::string(SCRATCH "/fill") + char('0' + i)).c_str());
            return error;
        """,
        fenced=ENOSPC,
    ),
    Escape(
        name="fills the disk with one file",
        code="""
            int file = open(SCRATCH "/big", O_CREAT | O_WRONLY, 0600);
            int error = file < 0 || ftruncate(file, 64l << 20) ? errno : 0;
            close(file);
            unlink(SCRATCH "/big");
            return error;
        """,
        fenced=EFBIG,
    ),
    Escape(name="uses its scratch", code='return opened(SCRATCH "/mine", O_CREAT | O_RDWR);', fenced=0),
    # Networks.
    Escape(name="opens a TCP socket", code="return made(socket(AF_INET, SOCK_STREAM, 0));", fenced=EPERM),
    Escape(name="opens a UDP socket", code="return made(socket(AF_INET, SOCK_DGRAM, 0));", fenced=EPERM),
    Escape(name="opens a Unix socket", code="return made(socket(AF_UNIX, SOCK_STREAM, 0));", fenced=EPERM),
    Escape(name="asks the kernel by netlink", code="return made(socket(AF_NETLINK, SOCK_RAW, 0));", fenced=EPERM),
    Escape(
        name="opens a ring that makes calls",
        code="char room[256] = {}; return made(syscall(SYS_io_uring_setup, 1, room));",
        fenced=EPERM,
    ),
    # Processes and threads.
    Escape(
        name="bombs with forks",
        code="""
            int made = 0;
            for (int i = 0; i < 16; ++i) {
                pid_t child = fork();
                if (child == 0) _exit(0);
                if (child > 0) { ++made; waitpid(child, nullptr, 0); }
            }
            return made;
        """,
        fenced=0,
        free=16,
    ),
    Escape(
        name="bombs with threads",
        code="""
            pthread_attr_t small;
            pthread_attr_init(&small);
            pthread_attr_setstacksize(&small, 1 << 16);
            std::vector<pthread_t> threads;
            int error = 0;
            static std::atomic<bool> stop;
            for (int i = 0; i < 200 && !error; ++i) {
                pthread_t thread;
                error = pthread_create(&thread, &small, [](void*) -> void* {
                    while (!stop) usleep(1000);
                    return nullptr;
                }, nullptr);
                if (!error) threads.push_back(thread);
            }
            stop = true;
            for (pthread_t thread : threads) pthread_join(thread, nullptr);
            return error;
        """,
        fenced=EAGAIN,
    ),
    Escape(
        name="leaves a daemon behind",
        code="""
            pid_t child = fork();
            if (child < 0) return errno;
            if (child == 0) {
                setsid();
                for (int i = 3; i < 64; ++i) close(i);
                usleep(700 * 1000);
                close(open(OUTSIDE "/daemon", O_CREAT | O_WRONLY, 0600));
                _exit(0);
            }
            return 0;
        """,
        fenced=EPERM,
    ),
    Escape(
        name="starts a shell",
        code="""
            pid_t child;
            char* words[] = {(char*)"sh", (char*)"-c", (char*)":", nullptr};
            int error = posix_spawn(&child, "/bin/sh", nullptr, nullptr, words, nullptr);
            if (!error) waitpid(child, nullptr, 0);
            return error;
        """,
        fenced=EPERM,
    ),
    Escape(
        name="becomes another program",
        code='char* none[] = {nullptr}; return execve("/nonexistent", none, none) < 0 ? errno : 0;',
        fenced=EPERM,
        free=ENOENT,
    ),
    Escape(name="signals its parent", code=says("kill(getppid(), 0)"), fenced=EPERM),
    Escape(name="signals everybody", code=says("kill(-1, 0)"), fenced=EPERM),
    Escape(name="holds its parent", code="return made(syscall(SYS_pidfd_open, getppid(), 0));", fenced=EPERM),
    Escape(
        name="has its parent signalled",
        code="int ends[2]; if (pipe(ends)) return errno; int done = fcntl(ends[0], F_SETOWN, getppid()); int e = errno;"
        " close(ends[0]); close(ends[1]); return done < 0 ? e : 0;",
        fenced=EPERM,
    ),
    Escape(name="traces its parent", code=says("ptrace(PTRACE_SEIZE, getppid(), nullptr, nullptr)"), fenced=EPERM),
    Escape(
        name="opens its parent's memory",
        code='return opened(("/proc/" + std::to_string(getppid()) + "/mem").c_str(), O_RDWR);',
        fenced=EACCES,
    ),
    Escape(
        name="reads its parent's memory",
        code="char mine; iovec to{&mine, 1}, from{(void*)&environ, 1};"
        "return process_vm_readv(getppid(), &to, 1, &from, 1, 0) < 0 ? errno : 0;",
        fenced=EPERM,
    ),
    Escape(
        name="moves its parent to other cores",
        code="cpu_set_t set; sched_getaffinity(getppid(), sizeof set, &set);"
        + says("sched_setaffinity(getppid(), sizeof set, &set)"),
        fenced=EPERM,
    ),
    Escape(
        name="reads its parent's limits",
        code="rlimit old; " + says("prlimit(getppid(), RLIMIT_NOFILE, nullptr, &old)"),
        fenced=EPERM,
    ),
    Escape(
        name="has users of its own again",
        code="""
            pid_t child = syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, nullptr, nullptr, nullptr, nullptr);
            if (child < 0) return errno;
            if (child == 0) _exit(0);
            waitpid(child, nullptr, 0);
            return 0;
        """,
        fenced=EPERM,
    ),
    Escape(name="has mounts of its own", code=says("unshare(CLONE_NEWNS)"), fenced=EPERM),
    # The machine.
    Escape(
        name="sets the clock",
        code="timespec never{-1, 0}; " + says("clock_settime(CLOCK_REALTIME, &never)"),
        fenced=EPERM,
        free=EINVAL,
    ),
    Escape(name="reads how the clock is steered", code="timex t{}; " + says("adjtimex(&t)"), fenced=EPERM),
    Escape(name="asks for keys", code=says("syscall(SYS_keyctl, 0, -3, 0)"), fenced=EPERM),
    Escape(
        name="types into a terminal",
        code='char c = \'x\'; int file = open("/dev/null", O_RDWR); int done = ioctl(file, TIOCSTI, &c); int e = errno;'
        " close(file); return done < 0 ? e : 0;",
        fenced=EPERM,
        free=ENOTTY,
    ),
    Escape(name="mounts", code=says('mount("none", "/nonexistent", "tmpfs", 0, "")'), fenced=EPERM, free=ENOENT),
    Escape(
        name="raises its memory's limit",
        code="rlimit now; getrlimit(RLIMIT_DATA, &now); rlimit more{now.rlim_cur + 4096, RLIM_INFINITY};"
        "int done = setrlimit(RLIMIT_DATA, &more); int e = errno; if (!done) setrlimit(RLIMIT_DATA, &now);"
        "return done < 0 ? e : 0;",
        fenced=EPERM,
    ),
    Escape(
        name="allocates more than its limit",
        code="rlimit all{RLIM_INFINITY, RLIM_INFINITY}; setrlimit(RLIMIT_DATA, &all);"
        "int how = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;"
        "void* at = mmap(nullptr, 6l << 30, PROT_READ | PROT_WRITE, how, -1, 0);"
        "return at == MAP_FAILED ? errno : (munmap(at, 6l << 30), 0);",
        fenced=ENOMEM,
    ),
    Escape(
        name="takes memory that nobody counts",
        code="void* at = mmap(nullptr, 4096, PROT_READ, MAP_SHARED | MAP_ANONYMOUS, -1, 0);"
        "return at == MAP_FAILED ? errno : (munmap(at, 4096), 0);",
        fenced=EPERM,
    ),
    Escape(
        name="takes memory as a stack",
        code="int how = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_GROWSDOWN;"
        "void* at = mmap(nullptr, 6l << 30, PROT_READ | PROT_WRITE, how, -1, 0);"
        "return at == MAP_FAILED ? errno : (munmap(at, 6l << 30), 0);",
        fenced=EPERM,
    ),
    Escape(name="takes memory of a device", code=reads('"/dev/zero"'), fenced=EACCES),
    Escape(name="outlives its parent", code=says("prctl(PR_SET_PDEATHSIG, 0)"), fenced=EPERM),
    Escape(name="makes a file in memory", code='return made(memfd_create("m", 0));', fenced=EPERM),
    # Secrets: ENOENT says that it is not there.
    Escape(
        name="reads a key from the environment",
        code='return getenv("PLANTED_API_KEY") ? 0 : ENOENT;',
        fenced=ENOENT,
    ),
    Escape(
        name="reads a key from what the process started with",
        code="""
            std::ifstream file("/proc/self/environ", std::ios::binary);
            std::string all{std::istreambuf_iterator<char>(file), {}};
            return all.find("PLANTED_API_KEY") != std::string::npos ? 0 : ENOENT;
        """,
        fenced=ENOENT,
    ),
)  # fmt: skip

HEAD = """
#include <atomic>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <fstream>
#include <iterator>
#include <pthread.h>
#include <sched.h>
#include <spawn.h>
#include <string>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timex.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <vector>
static int made(long file) { return file < 0 ? errno : (close(int(file)), 0); }
static int opened(const char* path, int how) { return made(open(path, how, 0600)); }
"""


def body() -> str:
    """A kernel that tries all and aborts with the table."""
    tries = " ".join(f'std::fprintf(stderr, "{n}=%d ", attempt_{n}());' for n in range(len(ESCAPES)))
    return f'if (rank == 0) {{ std::fprintf(stderr, "\\ntable: "); {tries} std::fflush(stderr); std::abort(); }}'


def before(paths: dict[str, str]) -> str:
    """What stands before the kernel: the attempts, with the test's paths."""
    named = "".join(f'#define {name} "{path}"\n' for name, path in paths.items())
    return HEAD + named + "".join(f"static int attempt_{n}() {{ {one.code} }}\n" for n, one in enumerate(ESCAPES))


def table(said: str) -> dict[str, int]:
    """What every attempt got, from the words of the process that ended."""
    pairs = said.rpartition("table: ")[2].split()
    return {ESCAPES[int(number)].name: int(got) for number, _, got in (pair.partition("=") for pair in pairs)}
