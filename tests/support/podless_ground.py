"""The test ground of the podless driver, so that the fake passes the contract of the real drivers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pool.drivers.port import Pod, PodPhase, PodRole, PodSpec, Word
from tests.support.podless import PodlessCluster, PodlessDriver


class PodlessGround:
    """One cluster of entries. The test does what a container would do by itself."""

    def __init__(self) -> None:
        self.cluster = PodlessCluster()

    def driver(self) -> PodlessDriver:
        return PodlessDriver(self.cluster)

    def spec(self, name: str = "w-one", *, role: PodRole = PodRole.WORKER) -> PodSpec:
        return PodSpec(
            name=name, profile="default", revision="rev-1", image="image:1", cpu_millicores=100,
            memory_mib=64, port=8080, grace_s=300, secret="key" if role is PodRole.WORKER else "", role=role,
        )  # fmt: skip

    def make_ready(self, pod: Pod) -> Pod:
        self.driver().become_ready(pod.name)
        return self.cluster.pods[pod.name]

    def make_busy(self, pod: Pod) -> None:
        self.cluster.words[pod.name] = Word.BUSY

    def make_unused(self, pod: Pod) -> None:
        self.cluster.words.pop(pod.name, None)
        found = self.cluster.pods.get(pod.name)
        if found is not None and found.terminating:
            self.cluster.take_away(pod.name)

    def make_container_die(self, pod: Pod) -> None:
        self.driver().change(pod.name, phase=PodPhase.ENDED, ready=False, trouble="killed", exit_code=137)

    def make_unaskable(self, pod: Pod) -> None:
        self.cluster.words[pod.name] = Word.SILENT

    def lose_companions(self, name: str) -> None:
        del self.cluster.secrets[name]

    def leave_companions(self, name: str) -> None:
        self.cluster.secrets[name] = "left"

    def grace_left_s(self, pod: Pod) -> float:
        return self.cluster.left_s[pod.name]

    @contextmanager
    def unreachable(self) -> Iterator[None]:
        self.cluster.down = True
        try:
            yield
        finally:
            self.cluster.down = False
