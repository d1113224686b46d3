"""A connection that is made when somebody needs it, and made anew after it has ended."""

import asyncio
import contextlib

from spillway.client import ClientError, Connection, OperationTimeout
from spillway.syphon.destinations import Opener
from spillway.syphon.policy import BackOff, as_client_error


class Reconnecting:
    """One connection for many. While a namespace cannot be reached it is tried now and then, not by everyone."""

    def __init__(self, opener: Opener, timeout_s: float) -> None:
        self._opener = opener
        self._timeout_s = timeout_s
        self._connection: Connection | None = None
        self._mutex = asyncio.Lock()
        self._back_off = BackOff()
        self._error: ClientError | None = None
        self._again_s = 0.0

    async def connection(self) -> Connection:
        """The one that lives. `ClientError` if there is none, also while the next try is not due yet."""
        async with self._mutex:
            if self._connection is not None and self._connection.error is None:
                return self._connection
            loop = asyncio.get_running_loop()
            if self._error is not None and loop.time() < self._again_s:
                raise self._error.with_traceback(None)
            try:
                async with asyncio.timeout(self._timeout_s):
                    self._connection = await self._opener()
            except Exception as error:
                self._error = _said(error, self._timeout_s)
                self._again_s = loop.time() + self._back_off.after()
                raise self._error from error
            self._error = None
            self._back_off.reset()
            return self._connection

    async def close(self, timeout_s: float) -> None:
        """A peer that has fallen silent does not keep us from leaving."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await connection.close()


def _said(error: Exception, timeout_s: float) -> ClientError:
    if isinstance(error, TimeoutError):
        return OperationTimeout(f"connecting: no answer within {timeout_s:g} s")
    return as_client_error(error)
