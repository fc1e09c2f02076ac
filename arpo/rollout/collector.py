"""Groups of trajectories on demand: the bridge between a trainer that blocks and episodes that overlap."""

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, TypeVar

from torch import Tensor

from arpo.agent.prompt import Prompt
from arpo.envs.pool.pool import EnvPool
from arpo.errors import ArpoError, RolloutError
from arpo.evaluation.scores import EvaluationResult, evaluate
from arpo.host.heartbeat import still
from arpo.inference.engine import GenerateRequest, InferenceEngine, Response
from arpo.models.tokenization import ChatTokenizer
from arpo.rollout.episode import Agent, EpisodeProtocol
from arpo.rollout.groups import difference, rollout_metrics, select_groups
from arpo.rollout.job import Job, SpecRows, evaluation_specs, training_specs
from arpo.rollout.loop import BackgroundLoop
from arpo.rollout.meter import Meter, Progress
from arpo.rollout.runner import EpisodeRunner
from arpo.rollout.sampler import TaskRequest, TaskStatistics
from arpo.rollout.settings import RolloutSettings
from arpo.rollout.storage import TrajectoryStore
from arpo.types import RolloutBatch, Task, Trajectory

_T = TypeVar("_T")


class RolloutCollector:
    """Collects groups of trajectories; owns the event loop on which the environments live.

    Every method is called from one thread, the trainer's, except `progress`, which any thread may call. A method that
    blocks can be interrupted by Ctrl-C; the episodes go on until `close`.

    Attributes:
        statistics: What came of each task; whoever checkpoints the task sampler checkpoints this too.
        policy_version: Of the weights that the engine was given last.
    """

    def __init__(
        self,
        make_engine: Callable[[], InferenceEngine],
        pool: EnvPool,
        chat: ChatTokenizer,
        prompt: Prompt,
        store: TrajectoryStore,
        settings: RolloutSettings,
    ) -> None:
        """Take the parts; nothing is started before `start`.

        Args:
            make_engine: Called once, by `start`, in the caller's thread; returns when the engine can serve.
            pool: Not started.
            chat: The tokenizer of the engine's checkpoint.
            prompt: How a task is put to the policy.
            store: Gets every trajectory as its episode ends.
            settings: The numbers.
        """
        self.pool = pool
        self.chat = chat
        self.prompt = prompt
        self.store = store
        self.settings = settings
        self.statistics = TaskStatistics(success_threshold=settings.success_threshold)
        self.policy_version = 0
        self._make_engine = make_engine
        self._engine: InferenceEngine | None = None
        self._runner: EpisodeRunner | None = None
        self._loop = BackgroundLoop("rollout")
        self._submitted: dict[int, tuple[tuple[TaskRequest, ...], Job]] = {}
        self._current: Job | None = None
        self._env_counters: dict[str, float] = {}

    def start(self) -> None:
        """Start engine and environments side by side; blocks until both are ready. Idempotent."""
        if self._loop.running:
            return
        self._loop.start()
        pool = self._loop.submit(self.pool.start())
        try:
            with still("starting the engine and the environments"):
                self._engine = self._make_engine()
                pool.result()
        except BaseException:  # a Ctrl-C too must leave no process behind
            pool.cancel()
            self.close()
            raise
        self._runner = EpisodeRunner(
            self.pool,
            Agent(self._engine, self.chat, self.prompt),
            self.store,
            max_attempts=self.settings.max_attempts,
            success_threshold=self.settings.success_threshold,
        )

    def submit(self, iteration: int, tasks: Sequence[Task | TaskRequest]) -> None:
        """Begin the episodes of an iteration; a bare task is asked for with the run's own settings.

        Episodes of this iteration that the store holds from before a crash, made by the weights that the engine has
        now, are taken from there.
        """
        if iteration in self._submitted:
            raise ArpoError(f"iteration {iteration} was submitted already and is not collected yet")
        requests = tuple(task if isinstance(task, TaskRequest) else TaskRequest(task) for task in tasks)
        specs = training_specs(requests, self.settings, iteration)
        finished = self.store.finished(iteration, self.policy_version)
        self._submitted[iteration] = requests, self._begin("train", iteration, specs, finished)

    def wait(self, iteration: int, policy_version: int) -> RolloutBatch:
        """Return the groups of a submitted iteration; blocks until its last episode has ended.

        Groups stand in the order of the tasks and members in the order of their index, whatever the order in which
        episodes ended.

        Args:
            iteration: What was submitted.
            policy_version: Of the policy that learns from the batch; what is too old for it is dropped.

        Raises:
            RolloutError: If no group is left to learn from.
            ArpoError: If an episode ended in an error that is no infrastructure failure, such as a full disk.
        """
        requests, job = self._submitted[iteration]
        self._current = job  # the one that is waited for, though a later one may have begun
        rows = job.rows()
        del self._submitted[iteration]
        for request, row in zip(requests, rows, strict=True):
            self.statistics.record(request.task.id, row)
        selection = select_groups(
            requests,
            rows,
            min_group_size=self.settings.min_group_size,
            oldest=policy_version - self.settings.max_policy_lag,
        )
        if not selection.groups:
            raise RolloutError(
                f"iteration {iteration} has no group left to learn from: {selection.too_small} too small because "
                f"{job.meter.dropped} of {job.meter.total} episodes were lost, {selection.stale} too old for policy "
                f"version {policy_version}; last causes: {job.causes}"
            )
        counters = self._loop.run(self._counters())
        metrics = rollout_metrics(selection, job.meter, job.elapsed_s, environments=self.pool.size)
        metrics |= difference(counters, self._env_counters)
        self._env_counters = counters
        return RolloutBatch(iteration, policy_version, selection.groups, metrics)

    def collect(self, tasks: Sequence[Task | TaskRequest], policy_version: int, iteration: int) -> RolloutBatch:
        """Return the groups of one iteration: `submit` and `wait` in one."""
        self.submit(iteration, tasks)
        return self.wait(iteration, policy_version)

    def evaluate_tasks(
        self,
        tasks: Sequence[Task],
        *,
        rollouts_per_task: int,
        temperature: float,
        protocol: EpisodeProtocol = "hard",
        seed: int = 0,
        iteration: int = 0,
        name: str = "val",
    ) -> EvaluationResult:
        """Return how the engine's policy does on tasks; blocks. The episodes go to split `eval` of the store.

        Args:
            tasks: What to try.
            rollouts_per_task: Episodes of each.
            temperature: 0 is greedy.
            protocol: What happens at the step limit.
            seed: Of the episodes, whatever the iteration: evaluations with one seed differ by the policy alone.
            iteration: When; part of the trajectories' ids.
            name: What; part of the trajectories' ids.

        Raises:
            RolloutError: If every episode was lost.
        """
        specs = evaluation_specs(
            tasks,
            self.settings,
            f"eval-{iteration}/{name}",
            rollouts_per_task=rollouts_per_task,
            temperature=temperature,
            protocol=protocol,
            seed=seed,
        )
        job = self._begin(name, iteration, specs, {})
        trajectories = [trajectory for row in job.rows() for trajectory in row if trajectory is not None]
        if not trajectories:
            raise RolloutError(f"evaluation {name} lost all {job.meter.total} episodes; last causes: {job.causes}")
        return evaluate(
            trajectories,
            tasks,
            name=name,
            success_threshold=self.settings.success_threshold,
            lost=job.meter.dropped,
        )

    def roll_out(
        self,
        tasks: Sequence[Task],
        *,
        rollouts_per_task: int,
        temperature: float,
        protocol: EpisodeProtocol,
        seed: int,
        name: str,
    ) -> list[list[Trajectory | None]]:
        """Return the episodes of each task, None for one that was lost; blocks. Arguments as of `evaluate_tasks`.

        Episodes that an interrupted call with the same arguments has left in the store are taken from there.
        """
        specs = evaluation_specs(
            tasks,
            self.settings,
            f"eval-0/{name}",
            rollouts_per_task=rollouts_per_task,
            temperature=temperature,
            protocol=protocol,
            seed=seed,
        )
        finished = {trajectory.id: trajectory for trajectory in self.store.read("eval", 0)}
        return self._begin(name, 0, specs, finished).rows()

    def update_weights(self, tensors: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Give the engine new weights; blocks until it serves them."""
        self._loop.run(self.engine.update_weights(tensors, version))
        self.policy_version = version

    def generate(self, request: GenerateRequest) -> Response:
        """Return one response of the engine."""
        return self._loop.run(self.engine.generate(request))

    def run(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """Return what a coroutine returns on the loop of engine and environments."""
        return self._loop.run(coroutine)

    @property
    def engine(self) -> InferenceEngine:
        """The engine; its coroutines go through `run`."""
        if self._engine is None:
            raise ArpoError("the collector has no engine: call start() first, and nothing after close()")
        return self._engine

    def progress(self) -> Progress:
        """Return where the rollout stands; cheap, and allowed from any thread."""
        states = self.pool.states()
        return self._current.progress(states) if self._current is not None else Progress(states)

    def close(self) -> None:
        """Cancel running episodes, stop environments and engine. Idempotent, and `start` may follow."""
        if self._loop.running:
            try:
                self._loop.run(self._close())
            finally:
                self._loop.close()
        self._submitted.clear()
        self._current = None

    async def _close(self) -> None:
        engine, runner = self._engine, self._runner
        self._engine = self._runner = None
        async with AsyncExitStack() as stack:  # each part is closed even where closing another one fails
            if engine is not None:
                stack.push_async_callback(engine.close)
            stack.push_async_callback(self.pool.close)
            if runner is not None:
                stack.push_async_callback(runner.close)

    def _begin(self, name: str, iteration: int, specs: SpecRows, finished: Mapping[str, Trajectory]) -> Job:
        if self._runner is None:
            raise ArpoError("the collector does not run: call start() first, and nothing after close()")
        flat = [spec for row in specs for spec in row]
        meter = Meter(total=len(flat))
        self._current = Job(
            name, iteration, specs, meter, future=self._loop.submit(self._runner.run(flat, meter, finished))
        )
        return self._current

    async def _counters(self) -> dict[str, float]:
        return self.pool.counters()
