"""Recorded and published workloads, each format read into the same rows."""
