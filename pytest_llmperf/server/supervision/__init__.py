"""The two processes that own one engine: start it, report on it, and leave nothing of it behind.

Run by path (``python -I entry.py``) in a session of its own, so this folder must stand alone: standard library at
the top, psutil and pynvml from the ``sys_path`` that it is handed (pytest's own). It speaks JSON lines.

The first process is the *guard*. It forks the *supervisor*, which starts the engine and does all the work. Should
somebody kill the supervisor, all that came from it becomes the guard's, who ends it; should somebody kill the guard,
the supervisor notices and stops. When the supervisor is gone the guard takes secrets out of the log, and ends.

stdin, the lifeline: the spec first (``EngineProcess._payload``), then commands: ``stop`` and ``keep``. Its end,
whatever caused it, means stop, unless ``keep`` came first.
stdout: ``started`` (pid, supervisor), ``failed`` (error), ``exited`` (code), ``lost`` (one of the two was killed),
``stopped`` (left, holding), ``unclean`` (error; the log may hold secrets). Its end is the end of both.
stderr is the engine's log. File descriptors beyond 2 (GPU leases, the reserved port) are held until the end, and never
reach the engine.
"""
