"""What `tfdist bench` measures on the machines of those who train.

benchmark    what a benchmark is: its flags, and what is done with the figures it measures
scaling, batch, input, collectives   one benchmark each
trial        trains a few steps, for scaling and batch
processes    starts the processes in which a benchmark runs, each on its own cores
hardware     describes the machine, for a line above the figures
"""
