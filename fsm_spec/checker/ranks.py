"""Ranks of local states: what every request's own moves never lower, so that a cycle of all keeps the rank of each.

Each request of a cycle goes round a cycle of its local automaton. States of one request that reach each other have one
rank, and a move from there to others raises it; the sum over requests stays the same on a cycle only if each rank
does, whoever is who. All other moves need not be looked at in a search for cycles.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import networkx as nx
import numpy as np

from fsm_spec.checker.packed import codes_of
from fsm_spec.checker.places import ABORTED, BOUNDS, ENDED_CODE, HALF, LOST, LOW, SEES, TARGET

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from fsm_spec.checker.packed import Model


def ranks_of(model: Model, *, rounds: bool) -> NDArray[np.int64] | None:
    """Give the rank of every local state by its code; None where no two of them reach each other."""
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from(range(codes_of(model)))
    graph.add_edges_from(_by_rounds(model) if rounds else _by_actions(model))
    condensed = nx.condensation(graph)
    if len(condensed) == len(graph):
        return None
    ranks = np.zeros(len(graph), np.int64)
    for rank, component in enumerate(nx.topological_sort(condensed)):
        for code in condensed.nodes[component]["members"]:
            ranks[code] = rank
    return ranks


def _by_rounds(model: Model) -> Iterator[tuple[int, int]]:
    codes = codes_of(model)
    for row, facts in enumerate(model.local):
        code = row % codes
        if facts[ABORTED] not in (LOST, ENDED_CODE):
            yield code, int(facts[ABORTED])
        # A code that stands for itself sees itself; a state that never waits unseen has 0 there, which is no request.
        if facts[SEES]:
            yield code, int(facts[SEES])
        for table in (model.prefills, model.admits):
            for option in table[row].tolist() if table.size else ():
                if option >= 0:
                    for target in model.options[
                        model.lists[option] : model.lists[option + 1], TARGET
                    ].tolist():
                        if target >= 0:
                            yield code, target


def _by_actions(model: Model) -> Iterator[tuple[int, int]]:
    codes = len(model.local)
    rows = {(index % codes, bounds) for index, bounds in enumerate(model.lists[:, BOUNDS].tolist())}
    for code, bounds in rows:
        for change in model.options[bounds & LOW : bounds >> HALF].tolist():
            yield code, code ^ change
