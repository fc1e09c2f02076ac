"""The settings that `benchmarks/scheduling.py` measures, one a line of its tables."""

from dataclasses import dataclass, field, replace

from scheduling_baselines import GROUP_SIZE
from scheduling_parts import Law, Laws

from arpo.rollout.settings import Order

ACTIONS_A_SECOND = 500.0
"""What two cores do here with room to spare; the default speed keeps a setting below."""
LOCK_STEP, BATCH, TASK, ROLLOUT, DECOUPLED = "lock-step", "batch-wise", "task-wise", "rollout-wise", "decoupled"


@dataclass(frozen=True, slots=True)
class Setting:
    """One line of a table."""

    schedule: str
    environments: int = 180
    groups: int = 22
    """Groups of an iteration."""
    lag: int = 0
    order: Order = "submitted"
    laws: Laws = field(default_factory=Laws)
    update_s: float = 60.0
    """Seconds of one update."""
    warm_up: int = 2
    """Iterations before those that are measured; the lag comes on top of them."""
    measured: int = 8
    speed: float = 50.0
    """How many times as fast as the laws say."""

    @property
    def name(self) -> str:
        return f"{self.schedule}, lag {self.lag}, {self.order}" if self.lag else self.schedule

    @property
    def slots(self) -> int:
        """The requests that the engine answers at the same time."""
        return self.laws.slots or self.environments

    @property
    def window(self) -> slice:
        """The iterations that are measured."""
        first = self.warm_up + self.lag
        return slice(first, first + self.measured)


def default_speed(environments: int) -> float:
    """The speed at which all environments together act `ACTIONS_A_SECOND` times a second, at most 50.

    A leased environment acts once in 11 seconds: a step, a response, and its share of a reset.
    """
    return min(50.0, ACTIONS_A_SECOND * 11 / environments)


def schedules(environments: int = 180) -> list[Setting]:
    """Lock-step to decoupled, with as many groups an iteration as environments can begin at once.

    Task-wise and rollout-wise differ from batch-wise only where more is waiting: their iterations have twice as many
    groups, and an update twice as long.
    """
    groups = environments // GROUP_SIZE
    one = Setting(BATCH, environments=environments, groups=groups)
    two = replace(one, groups=2 * groups, update_s=2 * one.update_s)
    decoupled = [
        replace(one, schedule=DECOUPLED, lag=lag, order=order)
        for lag, order in ((1, "submitted"), (1, "finished"), (2, "finished"), (4, "finished"))
    ]
    return [
        replace(one, schedule=LOCK_STEP),
        one,
        replace(two, schedule=TASK),
        replace(two, schedule=ROLLOUT),
        *decoupled,
    ]


def reference() -> list[Setting]:
    """The laws, size and length of the measurement of commit 630b491: 14 iterations with 176 environments."""
    turns = Setting(BATCH, environments=176, warm_up=2, measured=12)
    orders: tuple[Order, Order] = ("submitted", "finished")
    ahead = [
        replace(turns, schedule=DECOUPLED, lag=lag, order=order, measured=12 - 2 * lag)
        for lag in (1, 2, 4)
        for order in orders
    ]
    return [turns, *ahead]


def worlds() -> dict[str, tuple[Setting, tuple[int, ...]]]:
    """What the law is tried on: a world that is measured while it takes turns, and the lags that are predicted."""
    plain = Setting(BATCH)
    brief = Laws(reset=Law(5.0, 0.3), steps=Law(2.0, 0.5))
    return {
        "22 groups on 180 environments": (plain, (1, 2, 4)),
        "22 groups on 64 environments": (replace(plain, environments=64), (1, 2)),
        "an update of 10 minutes": (replace(plain, update_s=600.0, measured=4), (1,)),
        "an update of 20 minutes, short episodes": (replace(plain, update_s=1200.0, measured=3, laws=brief), (1,)),
        "an engine that answers 40 at once": (replace(plain, laws=Laws(slots=40)), (4,)),
    }


def real_time() -> list[Setting]:
    """1,024 environments that take their time."""
    return [
        Setting(DECOUPLED, environments=1024, groups=128, lag=2, order="finished", warm_up=0, measured=2, speed=1.0)
    ]


def sizes() -> list[Setting]:
    """16 to 1,024 environments with an eighth as many groups, and a trainer that grows with them."""
    ways = [(LOCK_STEP, 0), (DECOUPLED, 2), (DECOUPLED, 4)]
    return [
        Setting(way, environments=2**power, groups=2**power // GROUP_SIZE, lag=lag)
        for power in range(4, 11)
        for way, lag in ways
    ]
