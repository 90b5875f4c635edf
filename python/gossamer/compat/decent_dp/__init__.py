"""A drop-in for the package decent-dp 0.2.3.

A script changes the names of its imports, as ``from gossamer.compat.decent_dp.ddp import
DecentralizedDataParallel``, and keeps its loop.
"""
