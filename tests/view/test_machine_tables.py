"""Machines in a terminal: the numbers of a line, and none where a machine has one of a thing."""

import io

from rich.console import Console

from tilewave.machine import MACHINES
from tilewave.view.machine_terminal import print_machines


def line_of(name):
    console = Console(file=io.StringIO(), width=240)
    print_machines(console, (MACHINES[name],))
    return next(line for line in console.file.getvalue().splitlines() if name in line)


def test_the_number_of_xcds_is_shown_where_there_are_several():
    assert line_of("MI300X").split()[2:6] == ["8", "304", "CUs", "8"]
    assert line_of("H200").split()[2:4] == ["132", "SMs"]
