"""The process of the lab that runs the syphon: `python -m spillway.lab.syphon_host SPEC.json`."""

import asyncio
import contextlib
import json
import signal
import sys
from pathlib import Path
from typing import Any

from spillway.lab.histories import History
from spillway.lab.producer import ProducerPair


async def run(spec: dict[str, Any]) -> None:
    paired = ProducerPair(spec, History(Path(spec["directory"]), spec["name"]))
    await paired.pair(enable_syphon=True)
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    await paired.close()


def main() -> None:
    spec = json.loads(Path(sys.argv[1]).read_text())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(BrokenPipeError):
        asyncio.run(run(spec))


if __name__ == "__main__":
    main()
