"""The shell script that runs a server, and this process's connection to it.

docs/design/embedded.md describes how a server stops with the last process that uses it.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import signal
import subprocess
import time
import weakref
from pathlib import Path

from langgraph_durable.embedded.binaries import Account, Identity, last_lines, postgres_environment
from langgraph_durable.embedded.run_directory import create_run_directory, remove_run_directory, try_lock
from langgraph_durable.errors import EmbeddedPostgresError

POLL_INTERVAL = 0.01  # seconds between two looks at a state that sends no notification
_STOP_TIMEOUT = 60.0  # seconds; a fast shutdown writes a checkpoint, which takes long on a slow disk

# $1 is the run directory, the other arguments are Postgres's command line, standard input is the FIFO. It reads
# commands: an empty line (checks that the FIFO has a reader), hello-* (answered by a file of that name), or the name
# of a signal for Postgres.
# - echo creates the files, not `:`, because a failed redirection of a special builtin ends the shell.
# - sh starts background jobs with INT ignored, until Postgres installs its handlers. So TERM is sent first: before
#   the handlers are installed it kills; after that it starts the smart shutdown that INT turns into a fast one.
# - Redirections use descriptors up to 9; those from 10 on are locks, which all children inherit.
_SCRIPT = """
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


class Supervisor:
    """This process's use of a server: its open descriptors, and the supervisor if it started that.

    Attributes:
        run: The run directory.
        sockets: The directory of the server's socket.
        locks: Descriptors that lock the run and data directories; the server's processes inherit them.
        process: The supervisor, in the process that started it; None after release.
    """

    def __init__(self, run: Path) -> None:
        self.run = run
        self.sockets = run / "run"
        self.locks: list[int] = []
        self.process: subprocess.Popen[bytes] | None = None
        self._user_lock: int | None = None  # shared, on the socket directory
        self._control: int | None = None  # write end of the FIFO
        self._command: list[str] = []
        self._identity: Identity = {}
        _instances.add(self)

    @classmethod
    def create(cls, account: Account, locks: list[int]) -> Supervisor:
        """Create the run directory of a server that has not been launched.

        Args:
            account: The account the server will run under.
            locks: Further locks for the server's processes to inherit; closed on failure.

        Raises:
            EmbeddedPostgresError: No temporary directory is suitable.
        """
        try:
            run, run_lock = create_run_directory(account)
        except BaseException:
            for descriptor in locks:
                os.close(descriptor)
            raise
        supervisor = cls(run)
        supervisor.locks = [run_lock, *locks]
        try:
            supervisor.sockets.mkdir(mode=0o700)
            os.mkfifo(run / "control", mode=0o600)
            for path in (run, supervisor.sockets, run / "control"):
                account.chown(path)
            supervisor._user_lock = try_lock(supervisor.sockets, fcntl.LOCK_SH)
        except BaseException:
            shutil.rmtree(run, ignore_errors=True)
            supervisor.detach()
            raise
        return supervisor

    @classmethod
    def join(cls, run: Path, deadline: float) -> Supervisor | None:
        """Become a user of another process's server, or return None if it is starting or stopping.

        Args:
            run: The server's run directory.
            deadline: On the monotonic clock, in seconds.
        """
        supervisor = cls(run)
        joined = False
        try:
            supervisor._user_lock = try_lock(supervisor.sockets, fcntl.LOCK_SH)
            if supervisor._user_lock is not None:
                # Without O_NONBLOCK the open would wait for a reader; with it, it fails.
                supervisor._control = os.open(run / "control", os.O_WRONLY | os.O_NONBLOCK)
                os.set_blocking(supervisor._control, True)
                joined = supervisor._greet(deadline)
        except OSError:
            pass
        finally:
            if not joined:
                supervisor.detach()
        return supervisor if joined else None

    def _greet(self, deadline: float) -> bool:
        # The supervisor may have read end of file just before we opened the FIFO, so it must answer.
        hello = self.run / f"hello-{secrets.token_hex(8)}"
        while self.send(hello.name) and time.monotonic() < deadline:
            if hello.exists():
                return True
            time.sleep(POLL_INTERVAL)
        return False

    def launch(self, command: list[str], identity: Identity) -> None:
        """Start the supervisor's shell, which starts Postgres.

        Args:
            command: Postgres's command line.
            identity: The arguments of subprocess that change the account.
        """
        self._command, self._identity = command, identity
        # Opened here because a shell would wait forever for a writer if this process died first.
        reader = os.open(self.run / "control", os.O_RDONLY | os.O_NONBLOCK)
        try:
            if self._control is None:
                self._control = os.open(self.run / "control", os.O_WRONLY)
            os.set_blocking(reader, True)
            with (self.run / "log").open("ab") as log:
                self.process = subprocess.Popen(  # noqa: S603 - the shell parses no argument
                    ["/bin/sh", "-c", _SCRIPT, "langgraph-durable-postgres", str(self.run), *command],
                    stdin=reader,
                    stdout=log,
                    stderr=log,
                    cwd="/",
                    env=postgres_environment(),
                    pass_fds=self.locks,
                    start_new_session=True,  # a terminal's ^C ends this process first, and thereby the server
                    **identity,
                )
        finally:
            os.close(reader)

    def relaunch(self, signal_name: str) -> None:
        """Stop Postgres by a signal and start it again in the same run directory.

        Raises:
            EmbeddedPostgresError: This process did not start the server, or has released it.
        """
        if self.process is None:
            raise EmbeddedPostgresError(
                f"This process cannot restart the server in {self.run}. Only the process that started a server can "
                "restart it, before stop()."
            )
        self.send(signal_name)
        _wait_or_kill(self.process)
        self.launch(self._command, self._identity)

    def send(self, word: str = "") -> bool:
        """Send a command to the supervisor; return whether the FIFO has a reader."""
        if self._control is None:
            return False
        try:
            os.write(self._control, f"{word}\n".encode())
        except BrokenPipeError:
            return False
        return True

    def release(self) -> None:
        """Stop using the server; the last user waits until it has stopped. Idempotent."""
        if self._user_lock is None:
            return
        try:
            fcntl.flock(self._user_lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.detach()
            return
        last_user, self._user_lock = self._user_lock, None
        process, self.process = self.process, None
        try:
            self.detach()
            if process is not None:
                _wait_or_kill(process)
            deadline = time.monotonic() + _STOP_TIMEOUT
            while not remove_run_directory(self.run) and time.monotonic() < deadline:
                time.sleep(POLL_INTERVAL)
        finally:
            os.close(last_user)

    def detach(self) -> None:
        """Close this process's descriptors without waiting for the server."""
        for descriptor in (*self.locks, self._user_lock, self._control):
            if descriptor is not None:
                os.close(descriptor)
        self.locks, self._user_lock, self._control = [], None, None
        if self.process is not None:
            self.process.returncode = 0  # it may still be running; Popen would warn about that
            self.process = None

    def log_tail(self) -> str:
        """Return the end of the server's log."""
        try:
            return last_lines((self.run / "log").read_text(errors="replace"))
        except OSError as error:
            return f"(no log: {error})"


def _wait_or_kill(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(_STOP_TIMEOUT)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # ends its children too; Postgres recovers at the next start
        process.wait()


_instances: weakref.WeakSet[Supervisor] = weakref.WeakSet()


def _detach_all() -> None:
    for supervisor in list(_instances):
        supervisor.detach()


# A forked child must neither keep its parent's server running nor stop it.
os.register_at_fork(after_in_child=_detach_all)
