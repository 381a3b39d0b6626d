"""Real training for the emulated workers: models, data and the step loop around a flat gradient."""
