"""The model checker: requests composed, searched and judged, and the counterexamples it tells."""
