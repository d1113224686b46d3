"""What a peer has for the pump: commands for the core, and the numbers whose effects come back to this peer."""

from spillway.broker.commands import Command, DetachLink


class Outbox:
    def __init__(self) -> None:
        self.commands: list[Command] = []
        self.registered: list[int] = []
        self.unregistered: list[int] = []

    def detach(self, number: int) -> None:
        """A link has ended: the core hears of it, and what it says of the link is nothing to us any more."""
        self.commands.append(DetachLink(number))
        self.unregistered.append(number)

    def pop_commands(self, count_max: int, bytes_max: int) -> list[Command]:
        """The oldest ones; at least one, and no more than asked."""
        commands = self.commands
        count = 0
        total = 0
        for command in commands:
            total += command.size_bytes
            if count >= count_max or (total > bytes_max and count > 0):
                break
            count += 1
        if count == len(commands):
            self.commands = []
            return commands
        self.commands = commands[count:]
        return commands[:count]

    def drain_registered(self) -> list[int]:
        numbers = self.registered
        self.registered = []
        return numbers

    def drain_unregistered(self) -> list[int]:
        numbers = self.unregistered
        self.unregistered = []
        return numbers
