"""Runs Wave's own kernel templates and tests, from a checkout of its repository, with tilewave in the place of Wave.

Nothing of Wave's is part of this repository. `TILEWAVE_WAVE_CHECKOUT` names the folder of a checkout, and

    TILEWAVE_WAVE_CHECKOUT=~/wave python tests/wave_checkout/run.py

prints which of its test functions pass, and which of its templates they call.
"""
