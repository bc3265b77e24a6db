"""How long a launch takes: one model of time, read by the tuner, by passes and by what chooses a kernel at a call.

Formulas are arithmetic that does not care what a number is: on integers they predict, on numbers of a
`HostProgram` they become what machine code evaluates at each call.
"""
