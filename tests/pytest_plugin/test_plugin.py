"""The plugin: found, harmless, and of use when a test fails."""

from tests.pytest_plugin.conftest import RunPytest
from tests.pytest_plugin.samples import CAPLOG_SAMPLE

pytest_plugins = ["pytester"]

HEAVY = [
    "azure",
    "spillway.server",
    "spillway.broker",
    "spillway.admin",
    "cryptography",
    "starlette",
    "typer",
    "pyspark",
]


def test_nothing_of_the_broker_is_imported_until_a_test_asks_for_it(run_pytest: RunPytest) -> None:
    result = run_pytest(
        test_sample=f"""
        import sys

        def loaded():
            return [name for name in {HEAVY!r} if name in sys.modules]

        at_collection = loaded()

        def test_without_a_broker():
            assert at_collection == loaded() == []

        def test_with_one(spillway_namespace):
            assert "spillway.server" in loaded()
            assert "pyspark" not in loaded()
        """
    )
    result.assert_outcomes(passed=2)


def test_the_fixtures_are_documented_and_of_the_scope_they_say(run_here: RunPytest) -> None:
    result = run_here("--fixtures", test_sample="")
    for line in (
        "spillway_namespace_factory -- *",
        "spillway_namespace -- *",
        "spillway_module_namespace *module scope* -- *",
        "spillway_session_namespace *session scope* -- *",
    ):
        result.stdout.fnmatch_lines([line])


def test_each_test_has_a_namespace_of_its_own_and_a_module_or_a_run_can_share_one(run_here: RunPytest) -> None:
    sharing = """
        def test_alone(spillway_namespace):
            spillway_namespace.queue("q")

        def test_alone_again(spillway_namespace):
            spillway_namespace.queue("q")

        def test_first(spillway_module_namespace, spillway_session_namespace):
            spillway_module_namespace.queue("q")
            spillway_session_namespace.queue(__name__)

        def test_second(spillway_module_namespace, spillway_session_namespace):
            assert spillway_module_namespace.counts("q").active == 0
            assert spillway_session_namespace.counts("test_a").active == 0

        def test_two_at_once(spillway_namespace, spillway_namespace_factory):
            secondary = spillway_namespace_factory("secondary")
            for namespace in (spillway_namespace, secondary):
                namespace.queue("q")
            secondary.send("q", "x")
            assert spillway_namespace.connection_string != secondary.connection_string
            assert (spillway_namespace.counts("q").active, secondary.counts("q").active) == (0, 1)
        """
    run_here(test_a=sharing, test_b=sharing).assert_outcomes(passed=10)


def test_a_test_that_fails_shows_what_the_broker_logged_meanwhile_and_no_secret(run_here: RunPytest) -> None:
    result = run_here(
        test_sample="""
        from azure.servicebus import ServiceBusClient

        def knock(namespace):
            namespace.queue("orders")
            wrong = namespace.connection_string.replace("SAS_KEY_VALUE", "hushhush")
            with ServiceBusClient.from_connection_string(wrong, retry_total=0) as client:
                with client.get_queue_sender("orders"):
                    pass

        def test_that_passes(spillway_session_namespace):
            spillway_session_namespace.queue("said_before")
            spillway_session_namespace.send("said_before", "x")

        def test_that_fails(spillway_namespace, spillway_session_namespace):
            knock(spillway_namespace)

        def test_that_fails_in_its_set_up_is_not_this_one(spillway_namespace):
            pass
        """
    )
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*- Captured log of spillway namespace local call -*",
            "* DEBUG spillway.server.connection namespace=local client=127.0.0.1 connected",
            "* WARNING spillway.audit refused namespace=local what=put-token *",
        ]
    )
    text = result.stdout.str()
    assert text.count("Captured log of spillway") == 1, "of another test's lines, and of another namespace's, nothing"
    assert "hushhush" not in text.partition("Captured log of spillway")[2]


def test_a_failure_in_a_fixture_shows_the_log_too_and_a_skip_does_not(run_here: RunPytest) -> None:
    result = run_here(
        test_sample="""
        import pytest

        @pytest.fixture
        def filled(spillway_namespace):
            spillway_namespace.queue("q")
            spillway_namespace.send("q", "x")
            raise ValueError("no more")

        def test_that_needs_it(filled):
            pass

        def test_that_is_skipped(spillway_namespace):
            spillway_namespace.queue("q")
            spillway_namespace.send("q", "x")
            pytest.skip("not here")
        """
    )
    result.assert_outcomes(errors=1, skipped=1)
    result.stdout.fnmatch_lines(["*- Captured log of spillway namespace local setup -*"])
    assert result.stdout.str().count("Captured log of spillway") == 1


def test_a_broker_that_breaks_is_an_error_of_the_test(run_here: RunPytest) -> None:
    result = run_here(
        test_sample="""
        def test_that_passes(spillway_namespace, spillway_namespace_factory):
            spillway_namespace_factory("other")
            host = spillway_namespace._host

            async def fail():
                host.server.pump.on_failed(ValueError("planted"))

            host.run(fail())

        def test_the_next_one(spillway_namespace):
            assert spillway_namespace.queue("q") == "q"
        """
    )
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(["*NamespaceFailed: the broker of local failed: ValueError('planted')"])


def test_caplog_is_the_programs_alone(run_pytest: RunPytest) -> None:
    """From version 9 on, pytest listens to loggers that do not propagate, if they do so before the test begins."""
    result = run_pytest(test_sample=CAPLOG_SAMPLE)
    result.assert_outcomes(passed=2)
    result.stdout.no_fnmatch_line("*spillway.server*")
