"""Other people's frameworks: one thin module each, which imports its framework only when it is used."""
