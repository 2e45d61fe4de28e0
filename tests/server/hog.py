"""Holds memory of a real GPU: ``hog.py MIB`` itself, ``hog.py MIB ENGINE...`` in a deaf orphan, and becomes ENGINE."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time


def hold(mib: int) -> None:
    cuda = ctypes.CDLL("libcuda.so.1")
    device, context, address = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    for code in (
        cuda.cuInit(0),
        cuda.cuDeviceGet(ctypes.byref(device), 0),
        cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device),
        cuda.cuCtxSetCurrent(context),
        cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(mib << 20)),
    ):
        assert code == 0, code


def main() -> None:
    mib, engine = int(sys.argv[1]), sys.argv[2:]
    if not engine:
        hold(mib)
        print(flush=True)
        time.sleep(300)
        return
    ready, done = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            hold(mib)
            os.write(done, b"x")
            time.sleep(300)
        os._exit(0)
    os.wait()
    os.read(ready, 1)
    os.execv(sys.executable, [sys.executable, *engine])


if __name__ == "__main__":
    main()
