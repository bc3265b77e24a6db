"""Tasks spread over a Ray cluster: one that there is, or one of this machine. Ray is an extra: `pip install ray`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from types import TracebackType
from typing import Any, TypeVar

from tilewave.bench.workers import MOST_TIMES, Answer, Killed, answer
from tilewave.errors import TilewaveError
from tilewave.forks import IMPORTING

T = TypeVar("T")
R = TypeVar("R")


class RayWorkers:
    """Workers of a Ray cluster: `address` is that of a running one, `auto` finds it; without it, one is started.

    Each task takes `gpus` GPUs, or one CPU if that is 0; with a whole GPU, no other task measures on it.
    """

    def __init__(self, address: str = "", count: int | None = None, gpus: float = 0) -> None:
        self.ray, self.gpus = _ray(), gpus
        self.started = not self.ray.is_initialized()
        if self.started and address:
            self.ray.init(address=address, log_to_driver=False)
        elif self.started:
            self.ray.init(num_cpus=count, include_dashboard=False, log_to_driver=False)

    def __enter__(self) -> RayWorkers:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.started:
            self.ray.shutdown()

    @property
    def gpu_count(self) -> int:
        """The number of GPUs of the whole cluster."""
        return int(self.ray.cluster_resources().get("GPU", 0))

    def results(self, do: Callable[[T], R], tasks: Sequence[T]) -> Iterator[tuple[int, R | Killed]]:
        """Yield results as they arrive; Ray restarts a task whose worker has died."""
        how: dict[str, Any] = {"max_retries": MOST_TIMES - 1, "num_gpus": self.gpus} | (
            {} if self.gpus else {"num_cpus": 1}
        )
        remote = self.ray.remote(**how)(answer)
        waiting = {remote.remote(do, task): number for number, task in enumerate(tasks)}
        while waiting:
            (done, *_), _ = self.ray.wait(list(waiting), num_returns=1)
            number = waiting.pop(done)
            try:
                found: Answer = self.ray.get(done)
            except self.ray.exceptions.WorkerCrashedError:
                yield number, Killed(MOST_TIMES)
            else:
                yield number, found.result()


def _ray() -> Any:
    try:
        with IMPORTING:
            return import_module("ray")
    except ImportError:
        remedy = "pip install ray; without it, --workers 4 spreads the work over processes of this machine"
        raise TilewaveError("--ray needs the package ray, which is not installed", remedy=remedy) from None
