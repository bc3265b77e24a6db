"""The program's name and version, which need no imports."""

from tilewave._version import __version__

PROGRAM = "tilewave"


def print_version() -> None:
    print(f"{PROGRAM} {__version__}")
