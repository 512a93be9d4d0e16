"""The contract between cidermill's processes: schemas, the queue, the ledger and the recorder."""

from importlib.metadata import version

__version__ = version("cidermill")
