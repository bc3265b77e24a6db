"""Tasks over processes: who dies is replaced and its task repeated, and what is decided is what one process decides."""

import os
import sys
from pathlib import Path

import pytest
from kernels import gemm
from worker_tasks import dies, dies_once, refuses, seconds, seconds_but_dies_once

from tilewave import *
from tilewave.bench.ray_workers import RayWorkers
from tilewave.bench.workers import MOST_TIMES, Killed, LocalWorkers
from tilewave.tune.default import TunableKernel
from tilewave.tune.search import ConfigTime, search

M, N, K = sym.M, sym.N, sym.K


def timed(texts):
    return [ConfigTime(one, 1e-9, 3) for one in seconds(texts)]


class Over:
    """Batches are timed by workers; one of them is killed on its way."""

    measures_here = False

    def __init__(self, workers, marker):
        self.workers, self.marker = workers, marker

    def __call__(self, measure, batches):
        tasks = [(str(self.marker) if at == 2 else "", [p.text for p in batch]) for at, batch in enumerate(batches)]
        for number, times in self.workers.results(seconds_but_dies_once, tasks):
            yield batches[number], [ConfigTime(one, 1e-9, 3) for one in times]


def undecided():
    return TunableKernel.of(gemm(), {M: 512, N: 512, K: 512}, (), {}, "sm_90a", Tune(num_stages=3, BLOCK_N=(64, 128)))


def local_ray():
    pytest.importorskip("ray", reason="ray is an extra, and not installed here")
    return RayWorkers(count=2)


CLUSTERS = [pytest.param(lambda: LocalWorkers(2), id="processes"), pytest.param(local_ray, id="ray")]


@pytest.fixture(autouse=True)
def found_by_workers(monkeypatch):
    """Processes that are started elsewhere find what they are to do."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), *sys.path]))


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_two_hundred_tasks_are_done_though_a_worker_is_killed(cluster, tmp_path):
    tasks = [(number, str(tmp_path / "killed") if number == 57 else "") for number in range(200)]
    with cluster() as workers:
        found = dict(workers.results(dies_once, tasks))
    assert {number: result for number, (_, result) in found.items()} == {n: 2 * n for n in range(200)}
    assert (tmp_path / "killed").exists() and len({process for process, _ in found.values()}) >= 2


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_what_workers_decide_is_what_one_process_decides(cluster, tmp_path):
    alone = search(undecided(), "exhaustive", lambda batch: timed([p.text for p in batch]), tmp_path / "alone")
    with cluster() as workers:
        over = search(undecided(), "exhaustive", None, tmp_path / "over", spread=Over(workers, tmp_path / "killed"))
    assert (tmp_path / "killed").exists()
    assert over.record == alone.record
    assert {(one.text, one.time) for one in over.tried} == {(one.text, one.time) for one in alone.tried}


def test_a_task_that_kills_everybody_is_given_up():
    with LocalWorkers(1) as workers:
        assert list(workers.results(dies, ["this"])) == [(0, Killed(MOST_TIMES))]
        assert [result for _, (_, result) in workers.results(dies_once, [(3, "")])] == [6]  # others are there
        processes = [one.process for one in workers.processes]
    assert processes and not any(one.is_alive() for one in processes)


def test_an_error_of_a_task_is_raised_where_it_was_asked_for():
    with LocalWorkers(1) as workers, pytest.raises(TilewaveError, match="ValueError: not this"):
        list(workers.results(refuses, ["this"]))


def test_without_ray_it_is_said_what_to_install(monkeypatch):
    def nothing(name):
        raise ImportError(name)

    monkeypatch.setattr("tilewave.bench.ray_workers.import_module", nothing)
    with pytest.raises(TilewaveError, match="--ray needs the package ray") as error:
        RayWorkers()
    assert "pip install ray" in error.value.remedy
