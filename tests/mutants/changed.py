"""The lines of the package that changed since a commit, from git."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

PACKAGE = "tilewave"
HUNK = re.compile(r"^@@ -\S+ \+(\d+)(?:,(\d+))? @@")


class NotARevision(ValueError):
    """The commit to compare with is not in this repository."""


def git(root: Path, *arguments: str) -> str:
    """Return what a git command prints; raise `NotARevision` where it fails."""
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True)
    if done.returncode:
        raise NotARevision(f"git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def default_base(root: Path) -> str:
    """Return the commit where this branch left origin/main, else the last tag, else the commit 20 before."""
    for attempt in (("merge-base", "origin/main", "HEAD"), ("describe", "--tags", "--abbrev=0")):
        try:
            return git(root, *attempt).strip()
        except NotARevision:
            continue
    return "HEAD~20"


def changed_lines(root: Path, base: str) -> dict[str, set[int]]:
    """Return, for each file of the package, the numbers of its lines that are not as they were at `base`."""
    git(root, "rev-parse", "--verify", "--quiet", f"{base}^{{commit}}")
    plain = ("-U0", "--no-color", "--no-ext-diff", "--diff-filter=d", "--src-prefix=a/", "--dst-prefix=b/")
    lines = lines_of_difference(git(root, "diff", *plain, base, "--", f"{PACKAGE}/*.py"))
    for path in git(root, "ls-files", "--others", "--exclude-standard", "--", f"{PACKAGE}/*.py").splitlines():
        lines[path] = set(range(1, len((root / path).read_bytes().splitlines()) + 1))
    return lines


def lines_of_difference(text: str) -> dict[str, set[int]]:
    """Return the numbers of the lines that a unified diff without context adds, by file."""
    lines: dict[str, set[int]] = {}
    path = ""
    for line in text.splitlines():
        if line.startswith("+++ b/"):
            path = line.removeprefix("+++ b/").rstrip("\t")
        elif hunk := HUNK.match(line):
            first, count = int(hunk[1]), int(hunk[2] or 1)
            lines.setdefault(path, set()).update(range(first, first + count))
    return {path: numbers for path, numbers in lines.items() if numbers}


def files_of_tree(root: Path) -> list[str]:
    """Return the files that a copy of the work tree consists of: tracked ones, and new ones that are not ignored."""
    listed = git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
    return sorted({path for path in listed if path and (root / path).is_file()})
