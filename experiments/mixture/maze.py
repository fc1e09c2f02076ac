"""A maze of MiniGrid that knows its way out, which demonstrations need."""

from collections import deque
from collections.abc import Iterator

from arpo.agent.actions import Action, Press
from arpo.envs.gymnasium.env import GymnasiumEnv

AHEAD = ((1, 0), (0, 1), (-1, 0), (0, -1))
"""Where one step leads, by MiniGrid's four directions."""


class SolvableMaze(GymnasiumEnv):
    """What `GymnasiumEnv` makes of a MiniGrid without doors, keys and lava; the keys left and right turn, up walks."""

    def solve(self) -> Iterator[Action]:
        """Yield the first key of a shortest way to the goal, from wherever the agent stands then."""
        while way := self._way():
            yield Press(way[0])

    def _way(self) -> list[str]:
        """Return the keys of a shortest way to the goal; none where the agent stands on it, or there is no way."""
        world, _ = self._running("step")
        maze = world.env.unwrapped
        start = (*map(int, maze.agent_pos), int(maze.agent_dir))
        ways: dict[tuple[int, int, int], list[str]] = {start: []}
        waiting = deque([start])
        while waiting:
            x, y, towards = waiting.popleft()
            cell = maze.grid.get(x, y)
            if cell is not None and cell.type == "goal":
                return ways[x, y, towards]
            across, down = AHEAD[towards]
            steps = {"left": (x, y, (towards - 1) % 4), "right": (x, y, (towards + 1) % 4)}
            front = maze.grid.get(x + across, y + down)
            if front is None or front.can_overlap():
                steps["up"] = (x + across, y + down, towards)
            for key, place in steps.items():
                if place not in ways:
                    ways[place] = [*ways[x, y, towards], key]
                    waiting.append(place)
        return []
