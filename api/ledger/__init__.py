"""The ledger: one SQLite file with every batch, request and result. It is the truth, Redis is transport."""
