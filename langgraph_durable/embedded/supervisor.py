"""A server's run directory, the locks that say who uses it, and its supervisor.

Theory of operation. A server runs under a supervisor, a few lines of sh, and ends with the last process that
uses it:

    our processes ──hold open──> control (a FIFO) ──standard input──> sh ──starts, stops──> postgres

The kernel closes a process's end however the process dies, kill -9 too. When the last end closes, sh reads
end of file, stops Postgres and removes the run directory. The rest is flock, which the kernel lets go of too:

    run directory     exclusive  The server's processes and its starter. If nobody holds it, the directory is
                                 left over, and the next start removes it. (systemd-tmpfiles respects it.)
    data directory    exclusive  The same; whoever gets it may start a server. Only if the caller named one.
    socket directory  shared     The server's users. Who can make it exclusive is the last one, and keeps it
                                 until the server has ended, so that nobody joins a server that is stopping.

The run directory, `<tmp>/lgd-pg-xxxxxxxx`, mode 0700, belongs to the account Postgres runs under. In it are
`run/` (the socket, whose path may have 107 bytes), `control`, `log`, and `data/` unless the caller named one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
import weakref
from pathlib import Path

from langgraph_durable.embedded.binaries import Account, Identity, environment
from langgraph_durable.errors import EmbeddedPostgresError

_PREFIX = "lgd-pg-"
POLL = 0.01  # seconds between two looks at what cannot be waited for
_BASE_LIMIT = 103 - len(f"/{_PREFIX}xxxxxxxx/run/.s.PGSQL.65535")  # bytes; Linux's limit is 107, macOS's 103
_STOP_TIMEOUT = 60.0  # seconds; a fast shutdown writes a checkpoint, which a slow disk draws out

# $1 is the run directory, the rest Postgres's command line, standard input the FIFO. Words from it: nothing
# (is anybody there?), hello-* (answered by a file of that name), else a signal for Postgres.
# - echo makes the files, not `:`, because a failed redirection of a special builtin ends the shell.
# - sh starts background jobs with INT ignored, until Postgres installs its handlers. So TERM goes first:
#   before the handlers it kills; after them it starts the patient shutdown that INT turns into a fast one.
# - Descriptors up to 9 are free for redirections; those from 10 on are locks, for all to inherit.
_SUPERVISOR = """
run=$1; shift
exec 3<&0 </dev/null
"$@" 3<&- &
server=$!
(
    while read -r word; do
        case $word in
            '') ;;
            hello-*) echo >"$run/$word" ;;
            *) kill -s "$word" "$server" ;;
        esac
    done
    echo >"$run/ended"
    kill -s TERM "$server"
    kill -s INT "$server"
) <&3 3<&- &
watch=$!
exec 3<&-
wait "$server"
status=$?
[ -e "$run/ended" ] || kill -s KILL "$watch"
wait "$watch" && rm -rf "$run"
exit "$status"
"""


def lock(directory: Path, kind: int = fcntl.LOCK_EX) -> int | None:
    """Lock a directory without waiting.

    Args:
        directory: What to lock.
        kind: LOCK_EX or LOCK_SH of fcntl.

    Returns:
        The descriptor that holds the lock, 10 or more (see _SUPERVISOR), not inherited unless passed on; None
        if the directory is locked against us or gone.
    """
    try:
        low = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    try:
        descriptor = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, 10)
    finally:
        os.close(low)
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(descriptor), directory.stat()):  # not removed since the open
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(descriptor)
    return None


def _make_run_dir(account: Account) -> tuple[Path, int]:
    """Make a locked run directory, after removing those left over by killed processes.

    Raises:
        EmbeddedPostgresError: No temporary directory can hold a socket that the account can reach.
    """
    bases = dict.fromkeys((tempfile.gettempdir(), "/tmp"))  # noqa: S108 - mkdtemp makes a name of its own in it
    for base in bases:
        # Anything else would need quoting in Postgres's settings and in connection strings.
        fits = len(os.fsencode(base)) <= _BASE_LIMIT and re.fullmatch(r"/[\w./+-]+", base)
        if fits and os.access(base, os.W_OK | os.X_OK) and account.may("x", Path(base)):
            break
    else:
        raise EmbeddedPostgresError(
            f"no temporary directory for the server's socket: set TMPDIR to a writable directory that "
            f"{account.name} can enter, with a path of at most {_BASE_LIMIT} plain characters "
            f"(tried {', '.join(bases)})"
        )
    _prune_all(Path(base), account)
    while True:
        run = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))
        held = lock(run)
        if held is not None:
            return run, held
        # Another process's sweep came between the two calls, and removes it.


def _prune_all(base: Path, account: Account) -> None:
    """Remove the run directories that nobody holds, if they are ours."""
    for run in base.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            if run.lstat().st_uid in (os.geteuid(), account.uid):
                _remove(run)


def _remove(run: Path) -> bool:
    """Remove a run directory unless somebody holds it; tell whether it is gone."""
    held = lock(run)
    if held is None:
        return not run.exists()
    shutil.rmtree(run, ignore_errors=True)
    os.close(held)
    return True


class Hold:
    """What ties a server to this process: open descriptors, and its supervisor if that is our child."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self.sockets = run / "run"
        self.locks: list[int] = []  # on the run and data directories; the server's processes inherit them
        self.users: int | None = None  # our shared lock on the socket directory
        self.control: int | None = None  # our end of the FIFO
        self.supervisor: subprocess.Popen[bytes] | None = None
        self._command: list[str] = []
        self._identity: Identity = {}
        _holds.add(self)

    @classmethod
    def make(cls, account: Account, locks: list[int]) -> Hold:
        """Make a run directory for a server that is yet to be launched.

        Args:
            account: Whom the server will run under.
            locks: What else the server's processes shall hold; closed if this fails.

        Raises:
            EmbeddedPostgresError: There is no place for it.
        """
        try:
            run, held = _make_run_dir(account)
        except BaseException:
            for descriptor in locks:
                os.close(descriptor)
            raise
        hold = cls(run)
        hold.locks = [held, *locks]
        try:
            hold.sockets.mkdir(mode=0o700)
            os.mkfifo(run / "control", mode=0o600)
            for path in (run, hold.sockets, run / "control"):
                account.own(path)
            hold.users = lock(hold.sockets, fcntl.LOCK_SH)
        except BaseException:
            shutil.rmtree(run, ignore_errors=True)
            hold.forget()
            raise
        return hold

    @classmethod
    def join(cls, run: Path, deadline: float) -> Hold | None:
        """Become a user of another process's server; None if it is not there yet, or not any more.

        Args:
            run: The server's run directory.
            deadline: On the monotonic clock, in seconds.
        """
        hold = cls(run)
        joined = False
        try:
            hold.users = lock(hold.sockets, fcntl.LOCK_SH)
            if hold.users is not None:
                hold.control = os.open(run / "control", os.O_WRONLY | os.O_NONBLOCK)  # fails without a reader
                os.set_blocking(hold.control, True)
                joined = hold._greet(deadline)
        except OSError:
            pass
        finally:
            if not joined:
                hold.forget()
        return hold if joined else None

    def _greet(self, deadline: float) -> bool:
        """Have the supervisor answer: it may have read end of file just before we opened the FIFO."""
        hello = self.run / f"hello-{secrets.token_hex(8)}"
        while self.tell(hello.name) and time.monotonic() < deadline:
            if hello.exists():
                return True
            time.sleep(POLL)
        return False

    def launch(self, command: list[str], identity: Identity) -> None:
        """Start the supervisor and, under it, Postgres.

        Args:
            command: Postgres's command line.
            identity: subprocess's arguments to change the account.
        """
        self._command, self._identity = command, identity
        # Opened here, not by the shell, which would wait for ever for a writer if we died in between.
        reader = os.open(self.run / "control", os.O_RDONLY | os.O_NONBLOCK)
        try:
            if self.control is None:
                self.control = os.open(self.run / "control", os.O_WRONLY)
            os.set_blocking(reader, True)
            with (self.run / "log").open("ab") as log:
                self.supervisor = subprocess.Popen(  # noqa: S603 - the shell parses no argument
                    ["/bin/sh", "-c", _SUPERVISOR, "langgraph-durable-postgres", str(self.run), *command],
                    stdin=reader,
                    stdout=log,
                    stderr=log,
                    cwd="/",
                    env=environment(),
                    pass_fds=self.locks,
                    start_new_session=True,  # a terminal's ^C ends us, and the server only after us
                    **identity,
                )
        finally:
            os.close(reader)

    def relaunch(self, signal_name: str) -> None:
        """Stop Postgres by a signal and start it again, in the same run directory.

        Raises:
            EmbeddedPostgresError: This process did not launch it, or has let go of it.
        """
        if self.supervisor is None:
            raise EmbeddedPostgresError(
                "only the process that started a server can restart it, before stop()"
            )
        self.tell(signal_name)
        _reap(self.supervisor)
        self.launch(self._command, self._identity)

    def tell(self, word: str = "") -> bool:
        """Send a word to the supervisor; False if it is not there."""
        if self.control is None:
            return False
        try:
            os.write(self.control, f"{word}\n".encode())
        except BrokenPipeError:
            return False
        return True

    def release(self) -> None:
        """Let go; as the last user, wait for the server's end and remove the run directory. Idempotent."""
        if self.users is None:
            return
        try:
            fcntl.flock(self.users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.forget()
            return
        last_user, self.users = self.users, None
        supervisor, self.supervisor = self.supervisor, None
        try:
            self.forget()
            if supervisor is not None:
                _reap(supervisor)
            deadline = time.monotonic() + _STOP_TIMEOUT
            while not _remove(self.run) and time.monotonic() < deadline:
                time.sleep(POLL)
        finally:
            os.close(last_user)

    def forget(self) -> None:
        """Let go without waiting."""
        for descriptor in (*self.locks, self.users, self.control):
            if descriptor is not None:
                os.close(descriptor)
        self.locks, self.users, self.control = [], None, None
        if self.supervisor is not None:
            self.supervisor.returncode = 0  # it may run on; Popen shall not warn of that
            self.supervisor = None

    def log_tail(self) -> str:
        """Return the end of the server's log."""
        try:
            return tail((self.run / "log").read_text(errors="replace"))
        except OSError as error:
            return f"(no log: {error})"


def tail(text: str) -> str:
    """Return the last lines of a program's output, for an error's message."""
    return "\n".join(["", *text.splitlines()[-15:]])


def _reap(supervisor: subprocess.Popen[bytes]) -> None:
    try:
        supervisor.wait(_STOP_TIMEOUT)
    except subprocess.TimeoutExpired:
        os.killpg(supervisor.pid, signal.SIGKILL)  # Postgres recovers from it, and its children end too
        supervisor.wait()


_holds: weakref.WeakSet[Hold] = weakref.WeakSet()


def _forget_all() -> None:
    for hold in list(_holds):
        hold.forget()


# A child must neither keep its parent's server alive nor stop it.
os.register_at_fork(after_in_child=_forget_all)
