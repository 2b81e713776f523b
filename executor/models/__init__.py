"""Language models: what a published model is, where it lies, and how its forward runs."""
