"""Freezes the main thread of a process, whose other threads go on: what a stuck collective looks
like from outside.

    freeze_thread.py PID

Prints `frozen`, and ends with the process. Exit status 77 where it is not allowed to trace.
"""

import ctypes
import errno
import os
import sys

PTRACE_SEIZE, PTRACE_INTERRUPT = 0x4206, 0x4207
WALL = 0x40000000

pid = int(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
libc.ptrace.restype = ctypes.c_long
for request in (PTRACE_SEIZE, PTRACE_INTERRUPT):
    if libc.ptrace(request, pid, None, None) != 0:
        sys.exit(77 if ctypes.get_errno() in (errno.EPERM, errno.ENOSYS) else 1)
status = os.waitpid(pid, WALL)[1]  # it has stopped
print('frozen', flush=True)
# The thread's end is told to its tracer first, and to its parent only when the tracer has taken it.
while os.WIFSTOPPED(status):
    status = os.waitpid(pid, WALL)[1]
