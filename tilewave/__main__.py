"""`python -m tilewave`: the command line, where the program `tilewave` is not on the path."""

from __future__ import annotations

from tilewave.cli.main import main

if __name__ == "__main__":
    main()
