"""Runs one stage in a session of its own, and ends all of it when its time is over."""

import json
import os
import select
import signal
import time
import traceback


class Unavailable(Exception):
    """The stage cannot be run here; the message is one line that says why."""


class Failed(Exception):
    """The stage ran and something is wrong; the message is one line."""


class Recorder:
    """What a stage found, a line at a time, so that what it had found stays when it is ended."""

    def __init__(self, descriptor: int):
        self.descriptor = descriptor

    def _send(self, *message) -> None:
        os.write(self.descriptor, (json.dumps(message) + "\n").encode())

    def result(self, name: str, value) -> None:
        self._send("result", name, value)

    def figure(self, name: str, value: float) -> None:
        self._send("figure", name, value)


def session_members(session: int) -> list[int]:
    members = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat") as file:
                fields = file.read().rsplit(")", 1)[1].split()
        except OSError:
            continue  # gone meanwhile
        if int(fields[3]) == session and fields[0] != "Z":
            members.append(int(name))
    return members


def end_session(session: int) -> None:
    """Ranks leave mpirun's process group, but not its session."""
    for _ in range(50):
        members = session_members(session)
        if not members:
            return
        for member in members:
            try:
                os.kill(member, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.02)


def child(body, write_end: int) -> None:
    os.setsid()
    recorder = Recorder(write_end)
    try:
        body(recorder)
        recorder._send("end", "passed", None)
    except Unavailable as why:
        recorder._send("end", "unavailable", str(why))
    except Failed as why:
        recorder._send("end", "failed", str(why))
    except Exception as error:  # a defect of the stage is a result of the stage
        traceback.print_exc()
        recorder._send("end", "failed", f"{type(error).__name__}: {error}".splitlines()[0])


def run_stage(body, budget_seconds: float, take) -> tuple[str, str | None]:
    """Runs body(recorder); take(kind, name, value) hears what it finds. Returns status and reason."""
    read_end, write_end = os.pipe()
    os.set_inheritable(write_end, False)
    pid = os.fork()
    if pid == 0:
        os.close(read_end)
        try:
            child(body, write_end)
        finally:
            os._exit(0)
    os.close(write_end)
    deadline = time.monotonic() + budget_seconds
    status, reason, pending = "failed", "the stage ended without a word", b""
    over = False
    while not over:
        if select.select([read_end], [], [], max(0.0, deadline - time.monotonic()))[0]:
            data = os.read(read_end, 1 << 16)
            over = data == b""
            pending += data
        *lines, pending = pending.split(b"\n")
        for line in lines:
            kind, name, value = json.loads(line)
            if kind == "end":
                status, reason = name, value
                over = True
            else:
                take(kind, name, value)
        if not over and time.monotonic() >= deadline:
            status, reason = "overran", f"ended after its {budget_seconds:g} s"
            over = True
    end_session(pid)
    os.close(read_end)
    os.waitpid(pid, 0)
    return status, reason
