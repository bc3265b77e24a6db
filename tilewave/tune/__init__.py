"""Autotuning: choose tiles and an order from a space of configs, with legality checks, a cost model and a reason."""
