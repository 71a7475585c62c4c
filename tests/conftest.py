"""Real parts, shared between tests: tiny models of each family, and private swarms that serve them."""

from __future__ import annotations

import contextlib
import functools
import gc
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import hypothesis  # now: deep inside other imports, Python 3.11 fails to compile it for pytest
import jsonschema
import pytest
import torch
from forkserver import FIRST, NAME, SERVER, fork_server
from tiny_models import LAYERS, random_checkpoint, save_tiny_models
from xdist.scheduler import LoadFileScheduling

from dist_eval import demo
from dist_eval.distributed.stop import SIGNALS
from dist_eval.errors import SwarmError
from dist_eval.model.classifier import Classifier, with_tuned_head
from dist_eval.model.swarm_backbone import SwarmBackbone, load_swarm_backbone
from dist_eval.petals.client.requests import SwarmRequests
from dist_eval.petals.client.routes import Span
from dist_eval.petals.model.checkpoint import TunedCheckpoint
from dist_eval.petals.server import private
from dist_eval.petals.server.private import PrivateSwarm
from dist_eval.process.lifetime import workspace
from dist_eval.process.logging_setup import silence_libraries
from dist_eval.process.patching import gc_paused
from dist_eval.schema import results_schema

silence_libraries()
# in the background of a script it is ignored, and whatever is started from here would ignore it, too
signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ.setdefault("GOGC", "100")  # Go's default: a run's daemons trade memory for speed, and here are dozens
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # else each process that is started would compile all libraries again
hypothesis.settings.register_profile("untimed", deadline=None)  # machines are busy
hypothesis.settings.load_profile("untimed")
torch.set_num_threads(1)  # a worker of xdist for each core: more threads would wait for each other

TIMEOUT = 400.0
FAMILIES = ("llama", "bloom", "falcon")
AnySwarm = TypeVar("AnySwarm", bound=PrivateSwarm)

SHARED_SWARMS = ("family_swarms", "demo_swarm")
"""Fixtures that tests share."""

HEAVIEST = ("launch/test_multinode.py", "launch/test_slurm.py", "benchmarks/test_chaos.py")
"""Files that need 3 to 5 GiB each."""


def shared_swarm(file: Path) -> str | None:
    """Returns the shared swarm that a file of tests uses."""
    words = {*re.findall(r"\w+", file.read_text(encoding="utf-8"))}
    return next((swarm for swarm in SHARED_SWARMS if swarm in words), None)


class BySwarm(LoadFileScheduling):
    """Gives whole files to the workers; to the same one those that share a swarm, and those that need most memory."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return "heaviest" if file.endswith(HEAVIEST) else shared_swarm(self.config.rootpath / file) or file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> BySwarm:
    return BySwarm(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: list[Any]) -> None:
    """Forks the workers of the whole suite: what they all import takes each as long as a part of its tests."""
    if config.args_source is pytest.Config.ArgsSource.TESTPATHS:
        os.environ[FIRST] = fork_server().command
        for spec in specs:
            spec.python = fork_server().command


STARTERS = ("launcher", "preloaded_ranks", "swarm_client", "by_world_size", "replicas")
"""Fixtures that start processes; so do those whose names end with swarm or swarms."""


def pytest_collection_finish() -> None:
    """Leaves out of the garbage collector what all tests share: hundreds of megabytes, which it would scan often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks tests by what they need. Files that start processes come first: no long one is left for the end.

    xdist keeps this order by its option --no-loadscope-reorder.
    """
    for item in items:
        if any(name in STARTERS or re.search("swarms?$", name) for name in getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.processes)
    starters = {
        item.path
        for item in items
        if item.get_closest_marker("processes") or "browser" in getattr(item, "fixturenames", ())
    }
    items.sort(key=lambda item: item.path not in starters)


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Random base models by name: the three families, and "wide", whose requests take Petals' streaming path."""
    return save_tiny_models(tmp_path_factory.mktemp("models"), *FAMILIES, "wide")


@dataclass
class SwarmClient:
    """This process as a client of several swarms, with one DHT node for each."""

    sockets: Path
    nodes: dict[str, Any] = field(default_factory=dict)
    backbones: list[SwarmBackbone] = field(default_factory=list)

    def join(self, swarm: PrivateSwarm) -> Any:
        from dist_eval.petals.client.client import join_swarm
        from dist_eval.petals.client.coverage import wait_until_covered

        if swarm.dht_prefix not in self.nodes:
            dht = join_swarm(swarm.initial_peers, TIMEOUT, check=swarm.require_alive)
            self.nodes[swarm.dht_prefix] = dht
            servers = len(swarm.spans)  # a server that is met too early is left alone for a while
            wait_until_covered(
                dht, swarm.dht_prefix, swarm.num_blocks, TIMEOUT, servers=servers, check=swarm.require_alive
            )
        return self.nodes[swarm.dht_prefix]

    def start(
        self, model: Path, spans: Sequence[tuple[int, int]], name: str, **options: Any
    ) -> AbstractContextManager[ForkedSwarm]:
        """Starts a swarm for a model, one of the tiny ones if nothing else is said."""
        options = {"num_blocks": LAYERS, "threads": 1, **options}
        return self.visiting(ForkedSwarm(str(model), dht_prefix=name, spans=spans, **options))

    @contextmanager
    def visiting(self, swarm: AnySwarm) -> Iterator[AnySwarm]:
        """Starts a swarm, and at the end lets go of whatever was made for it."""
        with swarm:
            try:
                yield swarm
            finally:
                self.leave(swarm)

    def leave(self, swarm: PrivateSwarm) -> None:
        """Lets go of whatever was made for a swarm."""
        from dist_eval.petals.client.client import leave_swarm

        node = self.nodes.pop(swarm.dht_prefix, None)
        for backbone in [one for one in self.backbones if one.dht is node]:
            backbone.close()
            self.backbones.remove(backbone)
        if node is not None and node.is_alive():
            leave_swarm(node)

    def backbone(self, swarm: PrivateSwarm, **options: Any) -> SwarmBackbone:
        options = {"request_timeout": TIMEOUT, "max_retries": 4, **options}
        backbone = load_swarm_backbone(swarm.model, self.join(swarm), dht_prefix=swarm.dht_prefix, **options)
        self.backbones.append(backbone)
        return backbone

    def classifier(self, swarm: PrivateSwarm, tuned: TunedCheckpoint, **options: Any) -> Classifier:
        return with_tuned_head(self.backbone(swarm, **options), swarm.model, tuned)

    def classifier_on_all(self, swarm: PrivateSwarm, tuned: TunedCheckpoint, **options: Any) -> Classifier:
        """Makes a classifier for which every server has answered already: on a busy host the first contact may fail."""
        classifier = self.classifier(swarm, tuned, **options)
        wait_for_servers(classifier, len(swarm.spans))
        return classifier


def requests_of(classifier: Classifier) -> SwarmRequests:
    backbone = classifier.backbone
    assert isinstance(backbone, SwarmBackbone)
    return backbone.requests


def wait_for_servers(classifier: Classifier, count: int) -> None:
    """Waits until so many servers are online, answer, and are used."""
    requests = requests_of(classifier)
    assert wait_for(lambda: len(requests.servers.spans()) == count or requests.servers.refresh())
    for span in requests.servers.spans():
        assert wait_for(lambda span=span: _answers(classifier, span))
    assert wait_for(
        lambda: not any(requests.router.stats(s.peer).is_banned(time.monotonic()) for s in requests.servers.spans())
    )


def _answers(classifier: Classifier, span: Span) -> bool:
    try:
        requests_of(classifier).ask(span, classifier.backbone.embedded(torch.ones(1, 4, dtype=torch.long), None), None)
    except SwarmError:
        return False
    return True


CLIENTS: list[SwarmClient] = []


@pytest.fixture(scope="session")
def swarm_client() -> Iterator[SwarmClient]:
    from dist_eval.petals.client.hivemind_compat import prepare_hivemind

    with workspace() as sockets:
        with gc_paused():  # DHT nodes are forked from here, and would copy all that they scan
            prepare_hivemind(sockets=sockets)
        client = SwarmClient(sockets)
        CLIENTS.append(client)
        yield client
        for backbone in client.backbones:
            backbone.close()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    from dist_eval.petals.client.hivemind_compat import prepare_hivemind

    for client in CLIENTS:  # a program that a test ran in this process had its sockets in a folder of its own
        if "swarm_client" in getattr(item, "fixturenames", ()):
            prepare_hivemind(sockets=client.sockets)


@dataclass
class Sharing:
    """Swarms that last until the next file does not use them: together they take gigabytes."""

    running: dict[str, ExitStack] = field(default_factory=dict)
    swarms: dict[str, Any] = field(default_factory=dict)
    next_file: Path | None = None

    def share(self, name: str, start: Callable[[ExitStack], Any]) -> Iterator[Any]:
        if name not in self.swarms:
            self.running[name] = ExitStack()
            self.swarms[name] = start(self.running[name])
        yield self.swarms[name]
        if self.next_file is None or shared_swarm(self.next_file) != name:
            del self.swarms[name]
            self.running.pop(name).close()


SHARING = Sharing()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    SHARING.next_file = nextitem.path if nextitem else None


def start_shared(stack: ExitStack, swarm: PrivateSwarm) -> PrivateSwarm:
    stack.enter_context(swarm)
    stack.callback(lambda: [client.leave(swarm) for client in CLIENTS])
    return swarm


@pytest.fixture(scope="module")
def family_swarms(tiny_models: dict[str, Path]) -> Iterator[dict[str, PrivateSwarm]]:
    """One swarm for each tiny model; the blocks of the first one are shared by two servers."""

    def swarm(name: str, path: Path) -> PrivateSwarm:
        blocks = 1 if name == "wide" else LAYERS
        spans = [(0, 2), (2, LAYERS)] if name == "llama" else [(0, blocks)]
        return ForkedSwarm(str(path), num_blocks=blocks, dht_prefix=f"tiny-{name}", spans=spans)

    yield from SHARING.share(
        "family_swarms",
        lambda stack: {name: start_shared(stack, swarm(name, path)) for name, path in tiny_models.items()},
    )


@pytest.fixture(scope="module")
def demo_swarm() -> Iterator[PrivateSwarm]:
    """A swarm of two servers for the embedded example's base model."""
    swarm = ForkedSwarm(str(demo.BASE_MODEL), num_blocks=4, dht_prefix=demo.BASE_MODEL.name, spans=[(0, 2), (2, 4)])
    yield from SHARING.share("demo_swarm", lambda stack: start_shared(stack, swarm))


class ForkedSwarm(PrivateSwarm):
    """A swarm whose servers are forked (see `forkserver`): they start in a second, and share most of their memory.

    Args:
        programs: files that servers run instead of the usual program, by number.
    """

    def __init__(self, *args: Any, programs: Mapping[int, str] | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self._programs = dict(programs or {})

    @property
    def peers(self) -> list[str]:
        """Ids of the servers."""
        return [address.rpartition("/")[2] for address in self.addresses]

    def _name(self, number: int) -> str:
        return f"{SERVER}{self._ports[number][0]}"

    def start_server(self, number: int) -> None:
        server = fork_server()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(private, "PYTHON", [server.command])
            for name, value in {**server.environment, NAME: self._name(number)}.items():
                patch.setenv(name, value)
            if number in self._programs:
                patch.setattr(self, "_program", [self._programs[number]])
            super().start_server(number)

    def group(self, number: int) -> int:
        """Waits for a server to be forked; returns its process group, to which signals can be sent."""
        found: set[int] = set()
        assert wait_for(lambda: found.update(fork_server().group(self._name(number))) or found)
        return found.pop()

    def kill_server(self, number: int) -> None:
        if self.servers[number].poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.group(number), signal.SIGKILL)
        super().kill_server(number)
        assert wait_for(lambda: not fork_server().group(self._name(number)))


@dataclass
class Launcher:
    """Starts programs of ours and can tell what they left behind.

    Every process that descends from them carries a marker in its environment, and their temporary files go to a folder
    of their own.
    """

    temporary: Path
    marker: str = field(default_factory=lambda: f"DIST_EVAL_TEST_{uuid.uuid4().hex}")

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, self.marker: "1", "TMPDIR": str(self.temporary), "OMP_NUM_THREADS": "1"}

    def start(
        self, *arguments: str, ranks: int | None = None, preloaded: bool = False, **kwargs: Any
    ) -> subprocess.Popen[str]:
        """Starts `python ARGUMENTS`, under torchrun if a number of ranks is given.

        It is a real interpreter, unless everything is to be imported already (see `forkserver`).
        """
        python, environment = sys.executable, self.environment
        if preloaded:
            server = fork_server()
            python, environment = server.command, {**environment, **server.environment}
        torchrun = [] if ranks is None else ["-m", "torch.distributed.run", f"--nproc_per_node={ranks}"]
        kwargs = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **kwargs}
        return subprocess.Popen([python, *torchrun, *arguments], env=environment, **kwargs)

    def run(
        self, *arguments: str, ranks: int | None = None, preloaded: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Runs a program to its end, as `start` would."""
        process = self.start(*arguments, ranks=ranks, preloaded=preloaded)
        try:
            out, err = process.communicate(timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def processes(self) -> dict[int, str]:
        """Returns id and command line of all living processes that descend from what was started."""
        found = {}
        for folder in Path("/proc").iterdir():
            if not folder.name.isdigit():
                continue
            try:
                ours = self.marker.encode() in (folder / "environ").read_bytes()
                if ours and (folder / "stat").read_text().rsplit(") ", 1)[1][0] != "Z":
                    found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
        return {**found, **(fork_server().children() if fork_server.cache_info().currsize else {})}

    def rank(self, number: int) -> int:
        """Returns the id of the process of a rank: the one that torchrun started, not what forked from it."""
        for process, command in sorted(self.processes().items()):
            variables = Path(f"/proc/{process}/environ").read_bytes()
            if "-m dist_eval" in command and f"\0RANK={number}\0".encode() in variables:
                return process
        raise AssertionError(f"rank {number} does not run")

    def leftovers(self) -> dict[int, str] | list[str]:
        """Waits a little for an end in good order and returns processes, else files, that are still there.

        torchrun's own folder does not count: it stays when the run fails.
        """
        found: list[dict[int, str] | list[str]] = []
        wait_for(lambda: found.append(self.processes() or self._files()) or not found[-1])
        return found[-1]  # not looked for again: a process that is exiting may be seen once more under a new parent

    def _files(self) -> list[str]:
        return [path.name for path in self.temporary.iterdir() if not path.name.startswith("torchelastic_")]

    def end(self) -> None:
        for number in self.processes():
            try:
                os.kill(number, 9)
            except OSError:
                continue


def with_options(command: Sequence[str], further: Sequence[str]) -> list[str]:
    """Returns a command with further options, each in the place of the one that the command has of its name."""
    named, kept, is_kept = {word for word in further if word.startswith("--")}, list[str](), True
    for word in command:
        is_kept = word not in named if word.startswith("-") else is_kept
        if is_kept:
            kept.append(word)
    return [*kept, *further]


def run_here(*command: str) -> int:
    """Runs `-m dist_eval ...`, `.tuning`, `.harness` or `.planning` as one rank here, where all is imported already.

    Its plots are empty files.

    Returns:
        The exit status.
    """
    from samples import EvaluationFolder, FolderWithoutPlots

    from dist_eval import __main__ as evaluation
    from dist_eval.arguments.commandline import parse_args
    from dist_eval.cli import program
    from dist_eval.harness import __main__ as harness
    from dist_eval.options.config import EVALUATION
    from dist_eval.planning import __main__ as planning
    from dist_eval.tuning import __main__ as tuning

    flag, module, *options = command
    assert flag == "-m"
    command_line: Any
    command_line, load = {
        "dist_eval": (EVALUATION, evaluation._load),
        "dist_eval.tuning": (tuning.COMMAND, tuning.load),
        "dist_eval.harness": (harness.HARNESS, harness.load),
        "dist_eval.planning": (planning.PLAN, planning.load),
    }[module]

    def load_without_plots(config: Any) -> tuple[Any, Any]:
        run, folder_class = load(config)
        return run, FolderWithoutPlots if folder_class is EvaluationFolder else folder_class

    with tempfile.TemporaryDirectory(prefix="own-") as scratch_dir:
        return program.run(parse_args(options, command_line), Path(scratch_dir), None, load_without_plots)


def scalars_in(folder: Path) -> dict[str, float]:
    """Returns the last values that a run has logged to TensorBoard in a folder, by name."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    logged: dict[str, float] = {}
    for place in {file.parent for file in folder.rglob("events.*")}:
        events = accumulator.EventAccumulator(str(place)).Reload()
        logged |= {tag: events.Scalars(tag)[-1].value for tag in events.Tags()["scalars"]}
    return logged


def assert_tracked(folder: Path, *accuracies: str) -> dict[str, float]:
    """Asserts that a run has logged accuracies while it went on, and in the end; returns all last values."""
    logged = scalars_in(folder / "logs")
    for name in accuracies:
        low, value, high = (logged[f"provisional/{name}{limit}"] for limit in ("/low", "", "/high"))
        assert low <= value <= high, "of what was judged by then"
        assert name in logged
    return logged


def results_of(folder: Path) -> dict[str, Any]:
    """Reads the `results.json` of a run's folder, which has to fit the published schema."""
    text = (folder / "results.json").read_text(encoding="utf-8")
    _validate(text)
    return json.loads(text)


SECTIONS = ("metrics", "undefined", "intervals", "per_class", "confusion_matrix", "coverage", "data", "plan")


def assert_equal_runs(one: Path, other: Path) -> None:
    """Compares the results of two complete runs, to the last byte."""
    assert results_of(one)["status"] == results_of(other)["status"] == "complete"
    assert (one / "predictions.parquet").read_bytes() == (other / "predictions.parquet").read_bytes()
    for section in SECTIONS:
        assert json.dumps(results_of(one)[section]) == json.dumps(results_of(other)[section]), section


def journal_size(output: Path) -> int:
    """Returns the bytes that the batches in a run's journal take."""
    return sum(path.stat().st_size for path in (output / "journal").glob("*.batches"))


def wait_until_under_way(output: Path, process: subprocess.Popen[str]) -> None:
    """Waits until a run has finished a batch, or has ended."""
    assert wait_for(lambda: journal_size(output) or process.poll() is not None)


@functools.lru_cache(maxsize=32)  # the same file is read several times
def _validate(results: str) -> None:
    _validator().validate(json.loads(results))


@functools.cache
def _validator() -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(results_schema())


@pytest.fixture(autouse=True)
def results_that_fit_the_schema(request: pytest.FixtureRequest) -> Iterator[None]:
    """What runs left in a test's folder, be they complete, stopped, failed or killed, fits the schema."""
    folder = request.getfixturevalue("tmp_path") if "tmp_path" in request.fixturenames else None
    yield
    for path in folder.rglob("results.json") if folder else ():
        if b'"environment":' in path.read_bytes():  # written by a run, and not by hand
            results_of(path.parent)


@pytest.fixture(autouse=True)
def signals_restored() -> Iterator[None]:
    """A program that a test runs in this process handles signals in its own way, until the test ends."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        if signal.getsignal(number) != handler:
            signal.signal(number, handler)


def wait_for(condition: Callable[[], Any], timeout: float = TIMEOUT) -> bool:
    """Polls a condition; returns whether it came true in time."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


@pytest.fixture
def launcher() -> Iterator[Launcher]:
    temporary = Path(tempfile.mkdtemp(prefix="t-"))  # short: Unix sockets are made below it
    launcher = Launcher(temporary)
    yield launcher
    launcher.end()
    shutil.rmtree(temporary, ignore_errors=True)


@pytest.fixture
def preloaded_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `dist_eval.run` starts has everything imported already."""
    server = fork_server()
    monkeypatch.setattr("dist_eval.api.run.PYTHON", server.command)
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def make_tuned() -> Callable[..., TunedCheckpoint]:
    """Makes random tuned checkpoints."""
    return random_checkpoint
