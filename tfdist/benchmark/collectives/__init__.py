"""Times collectives by operation, size, transport and wire type, and checks their results.

measure    the command; starts the workers of this machine, or is a worker of a cluster
task       one worker: goes through all cells and sizes together with the others
cells      what can be measured: operations, transports, wire types, and nccl-tests' factors
exercise   one operation of one transport: its input, its call, the check of its result
sockets    a raw socket, which they are compared with
figures    the table, JSON and plot
"""
