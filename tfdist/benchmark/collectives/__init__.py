"""Times collectives by operation, size, transport and wire type, and checks what they give.

cells      what can be measured: operations, transports, wire types, and nccl-tests' factors
exercise   one operation of one transport: its input, its call, the check of its result
sockets    a raw socket beside them
task       one worker: goes through all cells and sizes together with the others
local      starts the workers of this machine
report     the table, JSON and plot
"""
