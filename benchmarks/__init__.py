"""Measures what tfdist claims: `python -m benchmarks NAME`, in a checkout of tfdist."""
