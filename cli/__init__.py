"""The command line of producers and operators.

Importing it loads neither mlx nor the ledger nor the queue: each command loads what it needs when it runs.
"""
