"""The contract between cidermill's processes: schemas, the queue, the ledger and the recorder."""


def __getattr__(name: str) -> str:
    """`__version__`, looked up when asked: reading package metadata would slow every start of the command line."""
    if name != "__version__":
        raise AttributeError(name)
    from importlib.metadata import version

    return version("cidermill")
