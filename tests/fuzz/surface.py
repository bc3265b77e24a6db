"""The net of random public calls: what a seed makes, on arrays of this machine or of a GPU."""

from __future__ import annotations

from .call_judge import judge_call
from .call_maker import make_call
from .call_shrink import StillWrong, shrink_call
from .call_source import call_source
from .calls import Call, call_of_text, text_of_call
from .judge import Outcome

DEVICES = ("cpu", "cuda")


class PublicCalls:
    """A net whose cases are calls, each on one device."""

    def make(self, seed: int, device: str) -> Call:
        return make_call(seed, device)

    def judged(self, call: Call, device: str, only: str = "") -> Outcome:
        return judge_call(call, device)

    def case_on(self, seed: int, device: str) -> Outcome:
        return self.judged(self.make(seed, device), device)

    def case(self, seed: int) -> str | None:
        outcome = self.case_on(seed, DEVICES[0])
        return str(outcome) if outcome.wrong else None

    def text(self, call: Call) -> str:
        return text_of_call(call)

    def of_text(self, text: str) -> Call:
        return call_of_text(text)

    def shrunk(self, call: Call, still_wrong: StillWrong) -> Call:
        return shrink_call(call, still_wrong)

    def reproduction(self, call: Call, device: str, outcome: Outcome) -> str:
        return call_source(call, device, outcome)
