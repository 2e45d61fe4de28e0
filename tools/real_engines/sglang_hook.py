"""Stand-ins for what SGLang imports and a text model on a CPU never calls; AMX is asked for as in ``vllm_hook``.

``sgl_kernel`` has no build for such a machine. With it empty, SGLang runs its own scheduler, HTTP server and model code
on torch's kernels, so that no speed measured here says anything about SGLang's.
"""

import ctypes
import importlib.machinery
import platform
import sys
import types

MISSING = frozenset({"sgl_kernel", "torchvision", "torchaudio", "timm", "datasets"})

if platform.system() == "Linux" and platform.machine() == "x86_64":
    ctypes.CDLL(None).syscall(158, 0x1023, 18)


class Nothing:
    """Callable, subclassable, and every attribute of it is itself."""

    def __init__(self, *args, **kwargs):
        pass

    def __call__(self, *args, **kwargs):
        return self

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __mro_entries__(self, bases):
        return (object,)


class Hollow(type):
    """Makes classes whose attributes are ``Nothing``, for names that are used as types."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing()


class Absent(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Hollow(name, (), {}) if name[:1].isupper() else Nothing()


class Finder:
    """Last in line, so that a package that is there is found as ever."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in MISSING and not asked_by_transformers():
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        module = Absent(spec.name)
        module.__path__ = []
        return module

    def exec_module(self, module):
        pass


def asked_by_transformers():
    """Whether transformers wants to know if the package is installed, which it then would use."""
    frame = sys._getframe(2)
    for _ in range(8):
        if frame is None:
            return False
        code = frame.f_code
        if code.co_filename.endswith("transformers/utils/import_utils.py") and code.co_name != "_get_module":
            return True
        frame = frame.f_back
    return False


sys.meta_path.append(Finder())
