"""The replay ledger for callers: stand-alone, and as a part of a journal."""
