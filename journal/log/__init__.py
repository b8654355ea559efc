"""The log: the envelope, the codec, what may be found in it, folding and replaying it."""
