"""The executor: models, paged KV, and the runner that computes what a table's launches give."""
