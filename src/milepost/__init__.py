"""milepost: crash-proof checkpointing for people who train models in PyTorch."""

__version__ = "0.1.0"
