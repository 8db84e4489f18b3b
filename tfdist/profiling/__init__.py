"""Records what the processes of a job do in some steps, and reports where the time went."""
