"""Pure lifecycles: values, records, commands, effects and the state. No clock, no id, no file, no tensor."""
