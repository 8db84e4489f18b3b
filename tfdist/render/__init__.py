"""Writes the manifests of a job for Kubernetes and Slurm."""
