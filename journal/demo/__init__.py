"""Train, be killed in the middle of a save, resume, and show that nothing differs."""
