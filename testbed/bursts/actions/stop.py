"""Action `stop`: a straggler. Its process stands still (SIGSTOP) and goes on (SIGCONT); its kernel never stops."""

from __future__ import annotations

import signal

from scenarios.events import StopEvent
from testbed.bursts import actions


class Action(actions.Action):
    """Signals the hosts' processes; one that has ended already is left alone."""

    def start(self) -> None:
        self._signal(signal.SIGSTOP)

    def stop(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        for host in self.event.selected(self.stage.scenario.topology):
            process = self.stage.process(host)
            if process is not None:
                process.send_signal(number)


def local_problem(event: StopEvent) -> str | None:
    return None
