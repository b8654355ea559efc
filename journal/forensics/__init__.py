"""What happened to a run, told by reading it. Nothing here writes, locks or claims."""
