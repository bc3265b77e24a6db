"""What each command is asked: its words, options and help, without what does the work.

`sim.py` declares `tilewave sim`, and `cli/sim.py` does it. Nothing here imports numpy, the compiler or what draws
tables, so that --help answers at once.
"""
