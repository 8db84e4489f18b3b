"""Records what the processes of a job do in some steps, and says where the time went."""
