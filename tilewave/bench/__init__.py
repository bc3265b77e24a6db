"""Benchmarking: contestants that are checked and then timed in rounds, and the results as records.

A contestant is anything that computes one result on given arrays: a tilewave kernel or a library. Each is first checked
against float64, and a wrong one is not timed. Then all contestants are timed in rounds, in a new random order each
time, so that whatever slows the machine slows all of them. Results are the median and half the interquartile range;
ratios are taken only between samples adjacent in time. The command line only parses and prints.
"""
