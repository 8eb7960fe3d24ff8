"""What a replay computes at a position: all that a worker process has to load."""

from dataclasses import dataclass

from .dumps import Dump, Position
from .measure import Place, Plan, Row, measure


@dataclass(frozen=True)
class ReplayWork:
    """The rows of a position, at every temperature."""

    plan: Plan
    heat: tuple[float, ...]
    top_k: int | None
    top_p: float | None
    with_tree: tuple[bool, ...]

    def __call__(self, dump: Dump, index: int, position: Position, /) -> list[Row]:
        place = Place(index, position.prompt_idx, position.offset, position.token_id)
        rows = []
        for temperature, with_tree in zip(self.heat, self.with_tree, strict=True):
            probs = dump.probs(
                position, temperature=temperature, top_k=self.top_k, top_p=self.top_p
            )
            rows += measure(place, temperature, *probs, self.plan, with_tree=with_tree)
        return rows
