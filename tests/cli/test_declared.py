"""What commands are asked, declared apart from what does them, agrees with it."""

import inspect
from importlib import import_module

import pytest

from tilewave.bench import tuning
from tilewave.bench.contestants import BASELINES
from tilewave.bench.epilogue import BIAS_GELU
from tilewave.cli import bench, records, run, warm
from tilewave.cli.commands import COMMANDS, function_of
from tilewave.cli.declared import known
from tilewave.cycles import LATENCIES
from tilewave.explore.choice import ExplorerChoice
from tilewave.sim.problem import WALKS
from tilewave.tune.records import STRENGTHS
from tilewave.tune.search import RUNS
from tilewave.tune.store import DIRECTORY

USUAL = ExplorerChoice()
HOMES = {
    "RUN_INPUTS": tuple(map(str, run.INPUTS)),
    "BENCH_INPUTS": tuple(map(str, bench.INPUTS)),
    "BENCH_BASELINES": tuple(BASELINES),
    "EPILOGUE": BIAS_GELU,
    "BEST_MAPPING": bench.BEST_MAPPING,
    "STRENGTHS": STRENGTHS,
    "TUNE_RUNS": RUNS,
    "TUNE_ROUNDS": tuning.ROUNDS,
    "RECORDS": DIRECTORY,
    "RECORD_ACTIONS": records.ACTIONS,
    "WARM_DTYPES": warm.WARM_DTYPES,
    "WALK": WALKS[0],
    "CYCLES_LATENCIES": ",".join(map(str, LATENCIES)),
    "EXPLORED_SHAPE": USUAL.shape,
    "EXPLORED_TILE": USUAL.tile,
    "EXPLORED_DTYPE": USUAL.dtype,
    "EXPLORED_MACHINE": USUAL.machine,
}


def test_every_name_that_help_tells_is_held_against_its_home():
    assert {name for name in vars(known) if name.isupper()} == {*HOMES}


@pytest.mark.parametrize("name", HOMES)
def test_help_tells_what_its_home_says(name):
    assert getattr(known, name) == HOMES[name]


@pytest.mark.parametrize("command", COMMANDS)
def test_what_does_a_command_takes_what_is_declared_and_has_no_defaults_of_its_own(command):
    declared = inspect.signature(function_of(command)).parameters
    done = inspect.signature(getattr(import_module(f"tilewave.cli.{command}"), f"{command}_command")).parameters
    assert [*declared] == [*done]
    assert {one.default for one in done.values()} == {inspect.Parameter.empty}
