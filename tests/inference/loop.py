"""The one loop of all engines of the tests, as a run has one, and the tests that are coroutines on it."""

import asyncio
import inspect

import pytest

from arpo.host.threads import BackgroundLoop

LOOP = BackgroundLoop("tests of engines")


def run(coroutine):
    """The result of a coroutine; blocks, and a test that is one itself awaits instead."""
    LOOP.start()
    return LOOP.run(coroutine)


def together(*coroutines):
    async def gather():
        return await asyncio.gather(*coroutines)

    return run(gather())


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Run a test that is a coroutine on the loop of all engines."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}))
    return True
