"""Administration without TLS, for connection strings that say `UseDevelopmentEmulator=true`.

The SDK's administration client knows no scheme but https. A broker on the same machine needs none, and AMQP does
without it there; so the scheme is changed where the request leaves. Host and port stay.
"""

from typing import Any

from azure.core.pipeline.transport import AioHttpTransport


class ClearTextTransport(AioHttpTransport):  # type: ignore[misc]  # it is typed where it is loaded, on demand
    async def send(self, request: Any, **config: Any) -> Any:
        request.url = "http://" + request.url.removeprefix("https://").removeprefix("http://")
        return await super().send(request, **config)
