"""Action `kill`: processes die (SIGKILL). The run ends as failed, and says who was lost."""

from __future__ import annotations

from scenarios.events import KillEvent
from testbed.bursts import actions


class Action(actions.Action):
    """Kills the hosts' processes once."""

    def start(self) -> None:
        for host in self.event.selected(self.stage.scenario.topology):
            process = self.stage.process(host)
            if process is not None:
                process.kill()

    def stop(self) -> None:
        """The dead stay dead."""


def local_problem(event: KillEvent) -> str | None:
    return None
