"""Cleans up a workspace once its owner has ended: `python janitor.py PIPE_FD OWNER FOLDER [FILE...]`.

`lifetime.py` starts it without site-packages, so it must import only the standard library. It has a session of its own,
so it survives signals to the run's process group, and ends when the owner closes its pipe.
"""

import contextlib
import os
import select
import shutil
import signal
import sys
import time

KILL_SECONDS = 5.0
FIRST_LOOK_SECONDS, LONGEST_LOOK_SECONDS = 0.25, 30.0
SHARED_MEMORY = "/dev/shm"
EXITING = 0x4  # PF_EXITING in the flags of proc_pid_stat(5)


def processes_of(folder: str) -> dict[int, bool]:
    """Finds this user's processes whose command line or TMPDIR names `folder`, except this one."""
    needle, janitor = os.fsencode(folder), os.fsencode(__file__)
    found: dict[int, bool] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            if os.stat(f"/proc/{name}").st_uid != os.getuid():
                continue
            with open(f"/proc/{name}/cmdline", "rb") as line, open(f"/proc/{name}/environ", "rb") as variables:
                arguments = line.read()
                if needle in arguments or b"TMPDIR=" + needle in variables.read():
                    found[int(name)] = janitor in arguments.split(b"\0")
        except OSError:  # it has ended in the meantime
            continue
    return found


def descendants_of(process: int) -> set[int]:
    """Returns all descendants of a process."""
    found: set[int] = set()
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{process}/task"):
            with open(f"/proc/{process}/task/{thread}/children", encoding="ascii") as file:
                for child in map(int, file.read().split()):
                    found |= {child} | descendants_of(child)
    return found


def has_ended(process: int) -> bool:
    """Returns whether a process is gone or exiting; its files close before others can see its end."""
    try:
        with open(f"/proc/{process}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return True
    return bool(int(fields[6]) & EXITING)


def remove_shared_memory(process: int) -> None:
    """Removes shared memory of a process that was killed before torch unlinked it."""
    with contextlib.suppress(OSError):  # some systems lack the folder
        for name in os.listdir(SHARED_MEMORY):
            if name.startswith(f"torch_{process}_"):
                os.unlink(f"{SHARED_MEMORY}/{name}")


def main() -> None:
    """Waits for the owner to end, then kills its remaining processes and removes the folder and files."""
    descriptor, owner, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    known, wait = {owner}, FIRST_LOOK_SECONDS
    while not select.select([descriptor], [], [], wait)[0]:  # the owner writes nothing, but its end of the pipe closes
        known |= descendants_of(owner)  # processes that the kernel ends with the owner cannot be found later
        wait = min(2 * wait, LONGEST_LOOK_SECONDS)
    deadline = time.monotonic() + KILL_SECONDS
    while os.path.isdir("/proc") and time.monotonic() < deadline:
        remaining = processes_of(folder)
        if not remaining:
            break
        for process, is_janitor in remaining.items():
            if not is_janitor:  # another janitor ends by itself after removing its folder
                with contextlib.suppress(OSError):
                    os.kill(process, signal.SIGKILL)
        known.update(remaining)
        time.sleep(0.02)
    for process in filter(has_ended, known):  # the owner may have closed the workspace and still run
        remove_shared_memory(process)
    end = time.monotonic() + KILL_SECONDS
    while os.path.lexists(folder) and time.monotonic() < end:  # what is ending may still create or remove files in it
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(0.02)
    for path in sys.argv[4:]:
        with contextlib.suppress(OSError):
            os.unlink(path)


if __name__ == "__main__":
    main()
