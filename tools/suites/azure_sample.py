"""Plays one of Microsoft's samples on the stage of azure_stage.py: `python azure_sample.py SAMPLE`.

The samples sign in with Entra; `DefaultAzureCredential` is the namespace's key here. The entities that the environment
tells them of exist, with a few messages in them.
"""

import importlib
import runpy
import sys
from typing import Any

azure_stage: Any = importlib.import_module("azure_stage")  # beside this file, in the SDK's environment

MESSAGES = 10


def make_entities(has_sessions: bool) -> None:
    admin = azure_stage.administration()
    admin.create_queue("suite-queue")
    admin.create_queue("suite-session-queue", requires_session=True)
    admin.create_topic("suite-topic")
    admin.create_subscription("suite-topic", "suite-subscription", requires_session=has_sessions)


def send_messages() -> None:
    servicebus: Any = importlib.import_module("azure.servicebus")
    text = azure_stage.stage().connection_string(azure_stage.KEY_NAME, azure_stage.stage().key)
    with servicebus.ServiceBusClient.from_connection_string(text) as client:
        messages = [servicebus.ServiceBusMessage(f"message {number}") for number in range(MESSAGES)]
        in_session = [servicebus.ServiceBusMessage("in a session", session_id="suite-session") for _ in messages]
        for sender, sent in (
            (client.get_queue_sender("suite-queue"), messages),
            (client.get_queue_sender("suite-session-queue"), in_session),
            (client.get_topic_sender("suite-topic"), in_session),
        ):
            with sender:
                sender.send_messages(sent)


def sign_in_with_the_key() -> None:
    sync: Any = importlib.import_module("azure.identity")
    asynchronous: Any = importlib.import_module("azure.identity.aio")
    for module, where in (
        (sync, "azure.servicebus._base_handler"),
        (asynchronous, "azure.servicebus.aio._base_handler_async"),
    ):
        credential: Any = importlib.import_module(where).ServiceBusSharedKeyCredential
        made = type("NamedKey", (credential, Closed if module is sync else ClosedLater), {})
        for name in ("DefaultAzureCredential", "EnvironmentCredential"):
            vars(module)[name] = lambda made=made, **_: made(azure_stage.KEY_NAME, azure_stage.stage().key)


class Closed:
    """Entra's credentials are closed; with a key there is nothing to do."""

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def close(self) -> None:
        pass


class ClosedLater:
    async def __aenter__(self) -> Any:
        return self

    async def __aexit__(self, *_: Any) -> None:
        pass

    async def close(self) -> None:
        pass


def main() -> None:
    azure_stage.stage()
    try:
        azure_stage.set_environment()
        sample = sys.argv[1]
        make_entities("list_sessions" in sample)
        send_messages()
        sign_in_with_the_key()
        sys.argv = [sample]
        runpy.run_path(sample, run_name="__main__")
    finally:
        azure_stage.stage().close()


if __name__ == "__main__":
    main()
