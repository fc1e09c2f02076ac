"""An endpoint on loopback with the seat of one episode, whose scripted engine remembers what it was asked."""

import asyncio
from contextlib import asynccontextmanager

import httpx

from arpo.endpoint.rendering import Renderer
from arpo.endpoint.server import Endpoint, Seat
from arpo.endpoint.session import Budgets, Session
from arpo.endpoint.wire.common import Limits
from arpo.errors import EngineError
from arpo.inference.engine import Sampling
from tests.inference.scripted import ScriptedEngine

PLENTY = Budgets(1000, 10**6)


class Visit:
    """A seat, and the ways to ask for something at its address."""

    def __init__(self, endpoint, chat, *, respond=lambda request: "Well.", budgets=PLENTY, **options):
        self.endpoint, self.gate, self.asked, self.cancelled = endpoint, asyncio.Event(), asyncio.Event(), 0
        self.gate.set()
        self.engine = ScriptedEngine(chat, respond, hold=self._held, **options)
        sampling = Sampling(temperature=0.8, max_tokens=500)
        rest = {"seed": 7, "sampling": sampling, "max_context": 10**5, "budgets": budgets}
        self.seat = Seat(Session("0/1/2", Renderer(chat), chat, **rest), self.engine.generate)
        self.key = ""

    async def _held(self, request):
        self.asked.set()
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    @property
    def address(self):
        return f"http://127.0.0.1:{self.endpoint.port}"

    def client(self, key=None):
        headers = {"Authorization": f"Bearer {self.key if key is None else key}"}
        return httpx.AsyncClient(base_url=self.address, headers=headers, timeout=30, trust_env=False)

    async def post(self, body, path="/v1/chat/completions", *, key=None, **headers):
        async with self.client(key) as client:
            kind = "content" if isinstance(body, bytes) else "json"
            return await client.post(path, **{kind: body}, headers=headers)


@asynccontextmanager
async def serving(chat, *visits, **limits):
    """Serve some visits, one without options by default."""
    endpoint = Endpoint(Limits(**limits))
    await endpoint.start()
    seats = [Visit(endpoint, chat, **options) for options in visits or ({},)]
    try:
        async with asyncio.TaskGroup() as group, asyncio.timeout(60):
            stop = asyncio.Event()
            ready = [asyncio.Event() for _ in seats]

            async def sit(visit, here):
                async with endpoint.admit(visit.seat) as visit.key:
                    here.set()
                    await stop.wait()

            for visit, here in zip(seats, ready, strict=True):
                group.create_task(sit(visit, here))
            for here in ready:
                await here.wait()
            try:
                yield seats[0] if len(seats) == 1 else seats
            finally:
                stop.set()
    finally:
        await endpoint.close()


class Watched(Endpoint):
    """An endpoint that keeps what harnesses send."""

    def __init__(self):
        super().__init__()
        self.seen = []

    async def body(self, request, seat):
        body = await super().body(request, seat)
        if request.url.path.startswith("/v1"):
            self.seen.append((request.url.path, body))
        return body


class Broken:
    """An engine that fails."""

    async def __call__(self, request):
        raise EngineError("it has died")
