"""A process that runs cases, one line in, one line out; its parent process limits the time of each.

A line holds a net and a seed, and a target or a device where the net has some; or the text of a case to be judged.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import traceback
from pathlib import Path

MEMORY_BYTES = 6 << 30


def main() -> None:
    os.environ.setdefault("TILEWAVE_CACHE_DIR", "off")
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a case prints is no answer
    if not Path("/dev/nvidiactl").exists():  # CUDA maps more than there is memory
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), file=answers, flush=True)


def answer(asked: dict) -> dict:
    try:
        return run(asked)
    except MemoryError:
        return {"kind": "memory ran out", "way": asked.get("target", ""), "text": ""}
    except Exception as error:
        text = traceback.format_exc(limit=-6)
        return {"kind": f"the net raised {type(error).__name__}", "way": asked.get("target", ""), "text": text}


def run(asked: dict) -> dict:
    from .nets import NETS, SHRINKING

    net = SHRINKING.get(asked["net"])
    if net is not None and "case" in asked:
        return vars(net.judged(net.of_text(asked["case"]), asked["target"], asked.get("only", "")))
    if net is not None:
        return vars(net.case_on(asked["seed"], asked["target"]))
    found = NETS[asked["net"]](asked["seed"])
    kind = "agrees" if found is None else found.strip().split("\n")[0]
    return {"kind": kind, "way": asked["net"], "text": found or ""}


if __name__ == "__main__":
    main()
