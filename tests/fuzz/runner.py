"""Run the nets in child processes until the time is up or all cases ran, and report the findings."""

from __future__ import annotations

import threading
import traceback
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from .indexed_kernels import INDEXED
from .judge import Outcome, plain
from .kernels import KERNELS
from .nets import CALLS, SHRINKING
from .process import Child, now
from .surface import DEVICES

SHRINK_SECONDS = 40.0
MOST_ALIKE = 3
"""The most findings of one kind that are reduced and kept; the rest are counted."""


@dataclass(frozen=True)
class Case:
    net: str
    target: str
    seed: int

    def asked(self) -> dict[str, Any]:
        return {"net": self.net, "target": self.target, "seed": self.seed}

    def __str__(self) -> str:
        return f"{self.net} {self.target} {self.seed}".replace("  ", " ")


@dataclass
class Plan:
    nets: tuple[str, ...]
    targets: tuple[str, ...]
    seed: int = 0
    count: int | None = None
    seconds: float | None = None
    jobs: int = 1
    out: Path | None = None
    limit: float = 60.0
    shrinks: bool = True
    devices: tuple[str, ...] = DEVICES[:1]

    def places(self, net: str) -> tuple[str, ...]:
        """Where the cases of a net run: targets, devices, or in one place that has no name."""
        return self.targets if net in {**KERNELS, **INDEXED} else self.devices if net in CALLS else ("",)

    def cases(self) -> Iterator[Case]:
        """Each net's seeds in turn, in each of its places."""
        for seed in count(self.seed):
            if self.count is not None and seed >= self.seed + self.count:
                return
            for net in self.nets:
                yield from (Case(net, place, seed) for place in self.places(net))


@dataclass
class Tally:
    """What came of the cases so far."""

    ran: Counter = field(default_factory=Counter)
    refused: Counter = field(default_factory=Counter)
    wrong: Counter = field(default_factory=Counter)
    decided: Counter = field(default_factory=Counter)
    undecided: Counter = field(default_factory=Counter)
    refusals: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    findings: dict[tuple[str, str, str], list[str]] = field(default_factory=lambda: defaultdict(list))

    def add(self, case: Case, answer: dict[str, Any]) -> None:
        where = (case.net, case.target)
        self.ran[where] += 1
        self.decided[where] += answer.get("decided", 0)
        self.undecided[where] += answer.get("undecided", 0)
        if answer["kind"] == "refused":
            self.refused[where] += 1
            self.refusals[plain(answer["text"])].append(str(case))
        elif answer["kind"] != "agrees":
            self.wrong[where] += 1
            self.findings[self.key(case, answer)].append(f"{case}: {answer['text'].strip()}")

    @staticmethod
    def key(case: Case, answer: dict[str, Any]) -> tuple[str, str, str]:
        return case.net, answer["way"], plain(answer["kind"])


class Runner:
    def __init__(self, plan: Plan, say=print) -> None:
        self.plan, self.say = plan, say
        self.tally, self.lock = Tally(), threading.Lock()
        self.cases = plan.cases()
        self.began = self.said = now()

    @property
    def left(self) -> float:
        return float("inf") if self.plan.seconds is None else self.plan.seconds - (now() - self.began)

    def run(self) -> Tally:
        threads = [threading.Thread(target=self.work, daemon=True) for _ in range(self.plan.jobs)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.say(self.table())
        return self.tally

    def work(self) -> None:
        try:
            self.run_cases()
        except Exception:
            with self.lock:
                self.tally.findings["the runner", "", "raised"].append(traceback.format_exc())
                self.say(traceback.format_exc())

    def run_cases(self) -> None:
        with Child() as child:
            while (case := self.next()) is not None:
                answer = child.ask(case.asked(), self.plan.limit)
                with self.lock:
                    self.tally.add(case, answer)
                    seen = len(self.tally.findings.get(Tally.key(case, answer), ()))
                    self.progress()
                if answer["kind"] not in ("agrees", "refused") and seen <= MOST_ALIKE:
                    self.keep(child, case, Outcome(**answer))

    def next(self) -> Case | None:
        with self.lock:
            return next(self.cases, None) if self.left > 0 else None

    # -- findings

    def keep(self, child: Child, case: Case, outcome: Outcome) -> None:
        self.say(f"FOUND {case}: {outcome}"[:600])
        if self.plan.out is None or case.net not in SHRINKING:
            return
        net = SHRINKING[case.net]
        made = net.make(case.seed, case.target)
        if self.plan.shrinks and outcome.kind != "takes too long":
            made, outcome = self.smaller(child, made, case, outcome)
        self.plan.out.mkdir(parents=True, exist_ok=True)
        stem = f"{case.net}_{case.target}_{case.seed}"
        (self.plan.out / f"{stem}.py").write_text(net.reproduction(made, case.target, outcome))

    def smaller(self, child: Child, made: Any, case: Case, first: Outcome) -> tuple[Any, Outcome]:
        net, until, last = SHRINKING[case.net], now() + SHRINK_SECONDS, [first]
        only = "" if first.way == case.target else first.way

        def still_wrong(candidate: Any) -> bool:
            if now() > until:
                return False
            asked = {"net": case.net, "case": net.text(candidate), "target": case.target, "only": only}
            found = Outcome(**child.ask(asked, min(self.plan.limit, 20.0)))
            if found.alike != first.alike:
                return False
            last.append(found)
            return True

        return net.shrunk(made, still_wrong), last[-1]

    # -- what is said

    def progress(self) -> None:
        if now() - self.said < 10:
            return
        self.said = now()
        ran, wrong = sum(self.tally.ran.values()), sum(self.tally.wrong.values())
        left = f", {self.left:.0f} s left" if self.plan.seconds is not None else ""
        self.say(f"{ran:,} cases in {now() - self.began:.0f} s, {wrong} wrong{left}")

    def table(self) -> str:
        t = self.tally
        lines = ["", f"{'net':<14}{'target':<10}{'cases':>8}{'refused':>9}{'wrong':>7}{'decided':>12}{'undecided':>11}"]
        for where in sorted(t.ran):
            row = f"{where[0]:<14}{where[1]:<10}{t.ran[where]:>8,}{t.refused[where]:>9,}{t.wrong[where]:>7,}"
            lines.append(f"{row}{t.decided[where]:>12,}{t.undecided[where]:>11,}")
        if t.refusals:
            lines += ["", "refused:"]
            lines += [f"{len(seen):>6}  {kind}  ({seen[0]})" for kind, seen in _most(t.refusals)]
        if t.findings:
            lines += ["", "found:"]
            lines += [
                f"{len(seen):>6}  {': '.join(kind)}\n          {seen[0][:300]}" for kind, seen in _most(t.findings)
            ]
        return "\n".join(lines)


def _most(kinds: dict) -> list:
    return sorted(kinds.items(), key=lambda item: (-len(item[1]), item[0]))
