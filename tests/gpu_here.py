"""Whether this machine has a GPU for the tests in tests/gpu."""

from functools import cache

from tilewave.errors import TargetError
from tilewave.runtime.cuda_driver import cuda_driver


@cache
def why_no_gpu():
    """Return why tests/gpu cannot run here; nothing where it can."""
    try:
        device = cuda_driver().device(0)
    except TargetError as error:
        return error.what
    if not device.runs("sm_90a"):
        return f"{device.name} is {device.arch}, and these kernels are for sm_90a"
    return ""
