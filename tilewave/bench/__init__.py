"""Measuring: contestants that are checked and then timed in rounds, and what was found as records.

A contestant is anything that computes one thing on given arrays: a kernel of ours, a library. Each is held against
float64 first, and one that is wrong is not timed. Then come rounds: all contestants in turns, in a new random order
each time, so that what slows the machine slows all of them. What is told is a median, beside half the distance between
the quartiles, and a ratio only between neighbours in time. The command line parses and prints; nothing else.
"""
