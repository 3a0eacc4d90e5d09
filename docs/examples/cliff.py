"""The words of Gymnasium's cliff walk."""

from lgym.agents import TextAgent


class CliffAgent(TextAgent):
    system_prompt = "Walk to the goal. Off the cliff you start again. Answer up, right, down or left."
    actions = ("up", "right", "down", "left")  # in the order of the environment's numbers

    def format_observation(self, observation):
        row, column = divmod(int(observation), 12)
        below = "cliff" if row == 2 and 0 < column < 11 else "ground"
        return f"Below: {below}. Goal: {3 - row} down and {11 - column} right"
