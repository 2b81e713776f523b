"""The simulator: workload, acceptance, cost, memory, results and report of a decode algorithm's table."""
