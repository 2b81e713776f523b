"""What one launch runs, and who runs it: the engine's way to the simulator and to the executor."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fsm_spec.step import Columns, Step
    from fsm_spec.table import Table

Args = dict[str, "NDArray[np.int32]"]


class Group(NamedTuple):
    """Name the requests of a launch that are in one state; `columns` are theirs, int32 [n], before the launch."""

    state: str
    requests: NDArray[np.int64]
    columns: Columns


class Chunk(NamedTuple):
    """Describe a prefill chunk: tokens `start .. start + tokens - 1` of the request's text; `last` gives logits."""

    request: int
    start: int
    tokens: int
    last: bool


class Launch(NamedTuple):
    """Hold what one launch runs: a group for each state, and prefill chunks."""

    groups: tuple[Group, ...]
    chunks: tuple[Chunk, ...]


class Backend(Protocol):
    """Run launches; the simulator draws their outcomes, the executor computes them."""

    def launch(self, launch: Launch) -> list[Args]:
        """Run a launch; give, for each group, the counts that its operators found, by argument name, int32 [n]."""

    def stops(
        self, event: str, requests: NDArray[np.int64], columns: Columns, args: Args
    ) -> NDArray[np.int32]:
        """Give the tokens before the first stop token of each run about to be emitted; NO_STOP if there is none."""

    def settle(self, event: str, requests: NDArray[np.int64], before: Columns, done: Step) -> None:
        """Follow a step: move carries, append emitted tokens, count."""

    def resize(self, request: int, pages: int) -> None:
        """Follow the pages a request owns; 0 releases all."""

    def use(self, table: Table) -> None:
        """Run the coming launches under this table: that of the tier that the scheduler chose."""
