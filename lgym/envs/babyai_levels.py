"""A level of BabyAI that minigrid does not have."""

from typing import Any

from minigrid.envs.babyai.core.roomgrid_level import RoomGridLevel
from minigrid.envs.babyai.core.verifier import AfterInstr, BeforeInstr, GoToInstr, ObjDesc, PickupInstr

THINGS = 10


class PickupThenGoToLocal(RoomGridLevel):
    """Pick up one thing, then go to another one, in a room of 8 x 8 with ten things; asked for in either
    order: "pick up the red ball, then go to a grey key", "go to a grey key after you pick up the red ball".

    One of the five tasks of GLAM (Carta et al. 2023, arXiv:2302.02662).
    """

    def __init__(self, **kwargs: Any) -> None:
        """
        Args:
            **kwargs: of minigrid's levels, such as render_mode and max_steps.
        """
        super().__init__(room_size=8, num_rows=1, num_cols=1, **kwargs)

    def gen_mission(self) -> None:
        """Draw the things, the agent's place and the mission."""
        self.place_agent()
        things = self.add_distractors(num_distractors=THINGS, all_unique=False)
        self.check_objs_reachable()
        first, second = self._rand_subset(things, 2)
        pick_up = PickupInstr(ObjDesc(first.type, first.color))
        go_to = GoToInstr(ObjDesc(second.type, second.color))
        self.instrs = BeforeInstr(pick_up, go_to) if self._rand_bool() else AfterInstr(go_to, pick_up)
