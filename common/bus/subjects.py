"""Names of everything on NATS."""

from dataclasses import dataclass

from common.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Subjects:
    """Subjects of one cluster. Instance names are single tokens: no dots, blanks or wildcards."""

    cluster: str

    def load(self, instance: str) -> str:
        """Load reports of one instance."""
        return f"tandem.{self.cluster}.load.{_token(instance)}"

    @property
    def all_loads(self) -> str:
        return f"tandem.{self.cluster}.load.*"

    @property
    def cancel(self) -> str:
        """Work that nobody wants any more, for whoever has it."""
        return f"tandem.{self.cluster}.cancel"

    @property
    def cancel_request(self) -> str:
        """A request that its client wants ended, for the scheduler that has it."""
        return f"tandem.{self.cluster}.cancel.request"

    @property
    def explain(self) -> str:
        """A question about a recent request, for the scheduler that served it."""
        return f"tandem.{self.cluster}.explain"

    def drain(self, instance: str) -> str:
        """An instance says that it takes no new work."""
        return f"tandem.{self.cluster}.drain.{_token(instance)}"

    @property
    def all_drains(self) -> str:
        return f"tandem.{self.cluster}.drain.*"

    def hold(self, instance: str) -> str:
        """Somebody asks that an instance gets no new work for a while."""
        return f"tandem.{self.cluster}.hold.{_token(instance)}"

    @property
    def all_holds(self) -> str:
        return f"tandem.{self.cluster}.hold.*"


def _token(instance: str) -> str:
    if not instance or any(character in ".*> \t\r\n" for character in instance):
        raise ConfigError(f"instance name {instance!r} cannot be part of a NATS subject")
    return instance
