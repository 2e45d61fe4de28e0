"""Asks Linux for the CPU's matrix registers (AMX), which a process may not touch before it has asked.

The engine's kernels use them and do not ask: without this the first request ends the worker with SIGILL.
"""

import ctypes
import platform

SYS_ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA = 158, 0x1023, 18

if platform.system() == "Linux" and platform.machine() == "x86_64":
    ctypes.CDLL(None).syscall(SYS_ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)  # refused where there is none
