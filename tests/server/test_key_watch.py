"""How a running broker follows its key file: whatever goes wrong is tried again, and nobody waits for it."""

import fcntl
import os
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from spillway.model.access import SEND, AccessRule
from spillway.server.key_watch import KeyWatch
from spillway.server.keys import FILE_NAME, KEY_NAME, LOCK_NAME, ensure_rules, new_rule, write_rules

SOON_S = 10.0


@contextmanager
def no_more_files() -> Iterator[None]:
    """This process can open none; it can still ask about those that are there."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def names(rules: list[AccessRule] | None) -> list[str] | None:
    return None if rules is None else [rule.name for rule in rules]


@pytest.fixture
def watch(tmp_path: Path) -> KeyWatch:
    write_rules(tmp_path, [*ensure_rules(tmp_path), new_rule("leaver", SEND)])
    return KeyWatch(tmp_path, is_development=False)


def test_a_watch_notices_every_change_of_the_file_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rules = ensure_rules(tmp_path)
    watch = KeyWatch(tmp_path, is_development=False)
    assert watch.poll() is None
    for count in (1, 2):
        write_rules(tmp_path, [*rules, *[new_rule(f"r{number}", SEND) for number in range(count)]])
        found = watch.poll()
        assert found is not None
        assert len(found) == 1 + count
        assert watch.poll() is None
    (tmp_path / "keys.json").write_text('{"r": "short"}')
    assert watch.poll() is None
    assert "the rules stay as they are" in caplog.text
    (tmp_path / "keys.json").unlink()
    assert watch.poll() is None
    assert "is gone: the rules stay as they are" in caplog.text
    assert watch.poll() is None


def test_a_file_that_could_not_be_read_at_that_moment_is_read_at_the_next_look(
    watch: KeyWatch, caplog: pytest.LogCaptureFixture
) -> None:
    write_rules(watch.data, [rule for rule in ensure_rules(watch.data) if rule.name != "leaver"])
    with no_more_files():
        assert watch.poll() is None
        assert watch.poll() is None
    assert [line.split(": ")[0] for line in caplog.messages] == ["the rules stay as they are"], "said once"
    assert names(watch.poll()) == [KEY_NAME]
    assert watch.poll() is None


def test_a_file_that_is_mended_in_place_within_the_clocks_grain_is_read(watch: KeyWatch) -> None:
    path = watch.data / FILE_NAME
    before = path.stat()
    content = path.read_bytes()
    path.write_bytes(content.replace(b"leaver", b"joiner"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert names(watch.poll()) == [KEY_NAME, "joiner"]


def test_a_file_that_is_no_file_is_not_waited_for(watch: KeyWatch, caplog: pytest.LogCaptureFixture) -> None:
    path = watch.data / FILE_NAME
    content = path.read_bytes()
    path.unlink()
    os.mkfifo(path)
    assert watch.poll() is None
    assert f"{path}: is no plain file" in caplog.text
    path.unlink()
    path.write_bytes(content.replace(b"leaver", b"joiner"))
    assert names(watch.poll()) == [KEY_NAME, "joiner"]


def test_a_link_in_its_place_is_not_followed(watch: KeyWatch, caplog: pytest.LogCaptureFixture) -> None:
    path = watch.data / FILE_NAME
    path.rename(watch.data / "elsewhere.json")
    path.symlink_to("elsewhere.json")
    assert watch.poll() is None
    assert f"{path}: is a symbolic link" in caplog.text


def test_rules_go_though_another_command_holds_the_lock(watch: KeyWatch) -> None:
    """The root's rule is missing and cannot be written now; what was removed is gone all the same."""
    write_rules(watch.data, [new_rule("joiner", SEND)])
    with open(watch.data / LOCK_NAME, "w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert names(watch.poll()) == ["joiner"]
        assert watch.poll() is None
    assert names(watch.poll()) == [KEY_NAME, "joiner"]


def test_the_file_is_followed_by_a_thread_of_its_own(watch: KeyWatch) -> None:
    told: list[list[AccessRule]] = []
    came = threading.Event()

    def tell(rules: list[AccessRule]) -> None:
        told.append(rules)
        came.set()

    watch.follow(0.001, tell)
    try:
        write_rules(watch.data, [rule for rule in ensure_rules(watch.data) if rule.name != "leaver"])
        assert came.wait(SOON_S)
    finally:
        watch.stop()
    assert names(told[-1]) == [KEY_NAME]
    assert threading.current_thread().ident != watch.thread.ident
    assert watch.thread.daemon, "one that hangs on a dead disk does not keep the process"


def test_the_emulators_key_needs_no_file_and_nobody_is_alarmed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    watch = KeyWatch(tmp_path, is_development=True)
    assert watch.poll() is None
    assert caplog.text == ""
    write_rules(tmp_path, [new_rule("made-later", SEND)])
    assert "made-later" in (names(watch.poll()) or [])
