"""launch/kubernetes: what an API server would refuse, and what it would accept although it cannot work.

The kustomization is resolved here by a few lines that know what it uses of kustomize; where kustomize itself is at
hand, it must come to the same.
"""

from __future__ import annotations

import argparse
import base64
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from torch.distributed.run import get_args_parser

from dist_eval.arguments.commandline import parse_args
from dist_eval.doctor.config import DOCTOR
from dist_eval.errors import ConfigError
from dist_eval.options.config import EVALUATION, EvaluationConfig
from dist_eval.petals.__main__ import main as swarm_main
from dist_eval.petals.server.member import SERVE
from dist_eval.process.programs import FAILED, STOPPED, STOPPED_BY_A_PERSON, WRONG_OPTIONS

kubernetes_validate = pytest.importorskip("kubernetes_validate")

FOLDER = Path(__file__).parents[2] / "launch" / "kubernetes"
README = (FOLDER / "README.md").read_text(encoding="utf-8")
VERSIONS = re.search(r"Kubernetes ((?:\d\.\d+(?:, | and )?)+)", README)[1].replace(" and ", ", ").split(", ")  # type: ignore[index]
KINDS_OF_JOBS = ("job", "jobset", "trainjob")
PORT, RANKS_PORT = 31337, 29500
Object = dict[str, Any]


@pytest.fixture(scope="session")
def launch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's copy of the folder, with the keys and addresses that the README's command makes."""
    copy = tmp_path_factory.mktemp("user") / "kubernetes"
    shutil.copytree(FOLDER, copy, ignore=shutil.ignore_patterns("identities"))
    command = re.search(r"python -m dist_eval\.petals (identities .*?)```", README, re.DOTALL)
    assert command
    words = command[1].replace("\\\n", " ").replace("'", "").split()
    words[words.index("--folder") + 1] = str(copy / "identities")
    assert swarm_main(words) == 0
    return copy


def kustomized(folder: Path, job: str = "job") -> list[Object]:
    """Resolves the kustomization, with another kind of job if one is named."""
    root = yaml.safe_load((folder / "kustomization.yaml").read_text())
    known = {"namespace", "resources", "images", "configMapGenerator", "secretGenerator", "generatorOptions"}
    assert root.keys() - {"apiVersion", "kind"} == known, "this resolver knows no more"
    assert root["generatorOptions"] == {"disableNameSuffixHash": True}
    objects = []
    for resource in (job if name in KINDS_OF_JOBS else name for name in root["resources"]):
        part = yaml.safe_load((folder / resource / "kustomization.yaml").read_text())
        assert part.keys() == {"apiVersion", "kind", "resources"}
        for name in part["resources"]:
            objects += yaml.safe_load_all((folder / resource / name).read_text())
    for kind, generators in (("ConfigMap", root["configMapGenerator"]), ("Secret", root["secretGenerator"])):
        for generator in generators:
            files = [item.rpartition("=") for item in generator["files"]]
            content = {key or Path(path).name: (folder / path).read_bytes() for key, _, path in files}
            objects.append({"apiVersion": "v1", "kind": kind, "metadata": {"name": generator["name"]}, "data": content})
    for thing in objects:
        thing["metadata"]["namespace"] = root["namespace"]
        for container in _containers(thing):
            for image in root["images"]:
                if container.get("image") == image["name"]:
                    container["image"] = f"{image['newName']}:{image['newTag']}"
    return objects


def _containers(thing: Any) -> Iterator[Object]:
    if isinstance(thing, dict):
        for key, value in thing.items():
            yield from value if key in ("containers", "initContainers") else _containers(value)
    elif isinstance(thing, list):
        for item in thing:
            yield from _containers(item)


@pytest.fixture(params=KINDS_OF_JOBS)
def objects(request: pytest.FixtureRequest, launch: Path) -> list[Object]:
    return kustomized(launch, request.param)


def find(objects: list[Object], kind: str, name: str | None = None) -> Object:
    found = [one for one in objects if one["kind"] == kind and name in (None, one["metadata"]["name"])]
    assert len(found) == 1, (kind, name)
    return found[0]


def pod_templates(objects: list[Object]) -> dict[str, Object]:
    """Returns the pod template of each object that has one; a TrainJob's as far as it says something about it."""
    found = {}
    for one in objects:
        spec = one.get("spec", {})
        if one["kind"] in ("StatefulSet", "Job"):
            found[one["kind"]] = spec["template"]
        elif one["kind"] == "JobSet":
            found["JobSet"] = spec["replicatedJobs"][0]["template"]["spec"]["template"]
        elif one["kind"] == "TrainJob":
            (patch,) = spec["runtimePatches"]
            (job,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
            template = job["template"]["spec"]["template"]
            (container,) = template["spec"]["containers"]
            trainer = {name: spec["trainer"][name] for name in ("image", "command", "args", "env")}
            whole = {**container, **trainer, "resources": spec["trainer"]["resourcesPerNode"]}
            found["TrainJob"] = {**template, "spec": {**template["spec"], "containers": [whole]}}
    return found


def ranks_of(objects: list[Object]) -> tuple[Object, Object]:
    """Returns the pod template and the container with the ranks, of whichever kind of job."""
    (template,) = (one for kind, one in pod_templates(objects).items() if kind != "StatefulSet")
    (container,) = template["spec"]["containers"]
    return template, container


def plain(objects: list[Object]) -> list[Object]:
    """Returns what a schema of Kubernetes itself can judge: for a JobSet its job, for a TrainJob its pod."""
    shown = []
    for one in objects:
        head = {"metadata": {"name": one["metadata"]["name"]}}
        if one["kind"] == "JobSet":
            shown += [
                {"apiVersion": "batch/v1", "kind": "Job", **head, "spec": job["template"]["spec"]}
                for job in one["spec"]["replicatedJobs"]
            ]
        elif one["kind"] == "TrainJob":
            shown.append({"apiVersion": "v1", "kind": "Pod", **head, **pod_templates([one])["TrainJob"]})
        elif one["kind"] in ("ConfigMap", "Secret"):
            as_text = bytes.decode if one["kind"] == "ConfigMap" else lambda content: base64.b64encode(content).decode()
            shown.append({**one, "data": {name: as_text(content) for name, content in one["data"].items()}})
        else:
            shown.append(one)
    return shown


@pytest.mark.parametrize("version", VERSIONS)
def test_the_schemas_of_the_versions_that_the_readme_names_accept_everything(
    version: str, objects: list[Object]
) -> None:
    for one in plain(objects):
        kubernetes_validate.validate(one, version, strict=True)


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("podFailurePolicy:", "podFailurePolice:"), ("completions: 4", 'completions: "4"'), ("emptyDir:", "emtpyDir:")],
)
def test_the_check_by_schema_finds_what_it_is_for(wrong: str, right: str) -> None:
    text = (FOLDER / "job" / "job.yaml").read_text()
    assert wrong in text
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(yaml.safe_load(text.replace(wrong, right)), VERSIONS[-1], strict=True)


TEXTS = {"list": str}
JOBSET = {
    "network": {"enableDNSHostnames": bool, "subdomain": str, "publishNotReadyAddresses": bool},
    "failurePolicy": {
        "restartStrategy": {"Recreate", "BlockingRecreate", "InPlaceRestart"},
        "maxRestarts": int,
        "rules": {
            "list": {
                "name": str,
                "action": {"FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts"},
                "onJobFailureReasons": TEXTS,
                "onJobFailureMessagePatterns": TEXTS,
                "targetReplicatedJobs": TEXTS,
            }
        },
    },
    "replicatedJobs": {"list": {"name": str, "replicas": int, "template": {"metadata": dict, "spec": dict}}},
}
"""What version v1alpha2 has in a JobSet's spec, as far as it is used here; a job is judged by its own schema."""

POD_PATCH = {"terminationGracePeriodSeconds": int, "securityContext": dict, "volumes": list} | {
    "containers": {"list": {"name": str, "env": list, "securityContext": dict, "volumeMounts": list}}
}
TRAINJOB = {
    "runtimeRef": {"apiGroup": str, "kind": {"TrainingRuntime", "ClusterTrainingRuntime"}, "name": str},
    "trainer": {
        "image": str,
        "command": TEXTS,
        "args": TEXTS,
        "numNodes": int,
        "numProcPerNode": int,
        "env": list,
        "resourcesPerNode": {"requests": dict, "limits": dict, "claims": list},
    },
    "runtimePatches": {
        "list": {
            "manager": str,
            "trainingRuntimeSpec": {
                "template": {
                    "metadata": dict,
                    "spec": {
                        "replicatedJobs": {
                            "list": {
                                "name": str,
                                "template": {
                                    "metadata": dict,
                                    "spec": {"template": {"metadata": dict, "spec": POD_PATCH}},
                                },
                            }
                        }
                    },
                }
            },
        }
    },
}
"""The same for a TrainJob of v1alpha1; a patch may say less of a pod than Kubernetes does."""


def misfits(value: Any, shape: Any, where: str) -> list[str]:
    """Tells where a value has a field that is unknown, or one of another type."""
    if isinstance(shape, dict) and "list" in shape:
        if not isinstance(value, list):
            return [where]
        return [one for i, item in enumerate(value) for one in misfits(item, shape["list"], f"{where}[{i}]")]
    if isinstance(shape, dict):
        if not isinstance(value, dict):
            return [where]
        unknown = [f"{where}.{name}" for name in value.keys() - shape.keys()]
        return unknown + [
            one for name in value.keys() & shape.keys() for one in misfits(value[name], shape[name], f"{where}.{name}")
        ]
    fits = value in shape if isinstance(shape, set) else type(value) is shape
    return [] if fits else [where]


def test_a_jobset_and_a_trainjob_have_only_what_their_definitions_know(launch: Path) -> None:
    jobset = find(kustomized(launch, "jobset"), "JobSet")
    trainjob = find(kustomized(launch, "trainjob"), "TrainJob")
    assert jobset["apiVersion"] == "jobset.x-k8s.io/v1alpha2"
    assert trainjob["apiVersion"] == "trainer.kubeflow.org/v1alpha1"
    assert misfits(jobset["spec"], JOBSET, "spec") == []
    assert misfits(trainjob["spec"], TRAINJOB, "spec") == []
    assert misfits({**jobset["spec"], "failurePolicy": {"maxRestart": 3}}, JOBSET, "spec") == [
        "spec.failurePolicy.maxRestart"
    ]


def test_the_name_of_a_rule_is_one_that_a_jobset_allows(launch: Path) -> None:
    rules = find(kustomized(launch, "jobset"), "JobSet")["spec"]["failurePolicy"]["rules"]
    assert all(re.fullmatch(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?", rule["name"]) for rule in rules)


def test_kustomize_comes_to_the_same(launch: Path) -> None:
    command = next(
        ([name, *sub] for name, *sub in (("kustomize", "build"), ("kubectl", "kustomize")) if shutil.which(name)), None
    )
    if command is None:
        pytest.skip("neither kustomize nor kubectl is at hand")

    def built(folder: Path) -> dict[tuple[str, str], Object]:
        done = subprocess.run([*command, str(folder)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return {(one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(done.stdout)}

    theirs, ours = built(launch), {(one["kind"], one["metadata"]["name"]): one for one in kustomized(launch)}
    assert theirs.keys() == ours.keys()
    for name, one in ours.items():
        if name[0] not in ("ConfigMap", "Secret"):
            assert theirs[name] == one
    assert theirs["ConfigMap", "run"]["data"]["peers.txt"] == (launch / "identities" / "peers.txt").read_text()
    assert theirs["Secret", "identities"]["data"].keys() == {"swarm-0.key", "swarm-1.key"}
    root = launch / "kustomization.yaml"
    before = root.read_text()
    try:
        root.write_text(before.replace("# components:", "components:").replace("#   - gpu", "  - gpu"))
        server = built(launch)["StatefulSet", "swarm"]["spec"]["template"]["spec"]["containers"][0]
    finally:
        root.write_text(before)
    assert server["resources"]["limits"] == {"memory": "16Gi", "nvidia.com/gpu": "1"}


def test_what_is_referred_to_exists(objects: list[Object]) -> None:
    names = {(one["kind"], one["metadata"]["name"]) for one in objects}
    for template in pod_templates(objects).values():
        spec, volumes = template["spec"], set()
        for volume in spec["volumes"]:
            volumes.add(volume["name"])
            if "persistentVolumeClaim" in volume:
                assert ("PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"]) in names
            if "configMap" in volume:
                assert ("ConfigMap", volume["configMap"]["name"]) in names
            if "secret" in volume:
                assert ("Secret", volume["secret"]["secretName"]) in names
        for container in spec["containers"]:
            assert {mount["name"] for mount in container["volumeMounts"]} == volumes
            for variable in container["env"]:
                reference = variable.get("valueFrom", {}).get("secretKeyRef")
                assert reference is None or reference["optional"] or ("Secret", reference["name"]) in names


def test_services_find_their_pods(objects: list[Object]) -> None:
    templates = pod_templates(objects)
    for service in (one for one in objects if one["kind"] == "Service"):
        name, spec = service["metadata"]["name"], service["spec"]
        (template,) = (
            one
            for one in templates.values()
            if spec["selector"].items() <= one.get("metadata", {}).get("labels", {}).items()
        )
        assert spec["clusterIP"] == "None"
        assert spec["publishNotReadyAddresses"] is True
        assert [port["port"] for port in spec["ports"]] == [
            port["containerPort"] for port in template["spec"]["containers"][0]["ports"]
        ]
        if "StatefulSet" not in templates or template is not templates["StatefulSet"]:
            assert template["spec"]["subdomain"] == name
    swarm = find(objects, "StatefulSet")["spec"]
    assert swarm["selector"]["matchLabels"] == swarm["template"]["metadata"]["labels"]
    assert swarm["serviceName"] == find(objects, "Service", "swarm")["metadata"]["name"]


def test_all_images_are_equal(launch: Path) -> None:
    images = [
        container["image"]
        for job in KINDS_OF_JOBS[:2]
        for template in pod_templates(kustomized(launch, job)).values()
        for container in template["spec"]["containers"]
    ]
    assert len(set(images)) == 1
    (image,) = yaml.safe_load((launch / "kustomization.yaml").read_text())["images"]
    assert find(kustomized(launch, "trainjob"), "TrainJob")["spec"]["trainer"]["image"] == image["name"]


def at_home(word: str, container: Object, launch: Path) -> str:
    """Replaces a path in a pod by that of the file that is mounted there, and variables by values."""
    for mount in container["volumeMounts"]:
        if mount["name"] == "run" and mount["mountPath"] in word:
            shown = word.replace("/etc/dist_eval/", f"{launch}/")
            return shown.replace(f"{launch}/peers.txt", f"{launch}/identities/peers.txt")
    word = re.sub(r"\$\((\w+)\)", lambda match: {"POD_INDEX": "1", "POD_IP": "10.0.0.7"}[match[1]], word)
    return word.replace("/etc/dist_eval/identity.key", f"{launch}/identities/swarm-1.key")


def torchrun_options(
    container: Object, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> argparse.Namespace:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert container["command"] == ["python", "-m", "dist_eval.cluster.agent"]
    return get_args_parser().parse_args([word.replace("$(POD_INDEX)", "1") for word in container["args"]])


def test_the_ranks_command_line_is_one_that_torchrun_and_dist_eval_understand(
    objects: list[Object], launch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, container = ranks_of(objects)
    kinds = {one["kind"]: one for one in objects}
    given = {}
    if "TrainJob" in kinds:
        trainer = kinds["TrainJob"]["spec"]["trainer"]
        given = {"PET_NNODES": str(trainer["numNodes"]), "PET_NPROC_PER_NODE": str(trainer["numProcPerNode"])}
    options = torchrun_options(container, given, monkeypatch)
    assert (options.module, options.training_script) == (True, "dist_eval")
    assert (options.nnodes, options.nproc_per_node) == ("4", "4")
    assert (options.max_restarts, options.rdzv_conf) == (0, "timeout=3600")
    if "TrainJob" not in kinds:
        job = kinds["Job"] if "Job" in kinds else kinds["JobSet"]["spec"]["replicatedJobs"][0]["template"]
        assert int(options.nnodes) == job["spec"]["completions"] == job["spec"]["parallelism"]
        head = "evaluate-0.evaluate" if "Job" in kinds else "evaluate-ranks-0-0.evaluate"
        assert (options.node_rank, options.master_addr, options.master_port) == (1, head, RANKS_PORT)
        assert container["ports"] == [{"name": "rendezvous", "containerPort": RANKS_PORT}]
    words = [at_home(word, container, launch) for word in options.training_script_args]
    text = (launch / "run.yaml").read_text()
    (launch / "run.yaml").write_text(text.replace("/etc/dist_eval/peers.txt", str(launch / "identities" / "peers.txt")))
    try:
        config = parse_args(words, EVALUATION)
    finally:
        (launch / "run.yaml").write_text(text)
    assert isinstance(config, EvaluationConfig)
    assert config.initial_peers == (launch / "identities" / "peers.txt").read_text().split()
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    for path, writable in (
        (config.model, False),
        (config.checkpoint, False),
        (config.dataset, False),
        (config.output, True),
    ):
        (mount,) = (mount for place, mount in mounts.items() if str(path).startswith(f"{place}/"))
        assert mount.get("readOnly", False) is not writable


def test_the_servers_command_line_is_one_that_dist_eval_understands(launch: Path) -> None:
    objects = kustomized(launch)
    swarm, service = find(objects, "StatefulSet")["spec"], find(objects, "Service", "swarm")
    (container,) = swarm["template"]["spec"]["containers"]
    assert container["command"] == ["python", "-m", "dist_eval.petals", "serve"]
    options = parse_args([at_home(word, container, launch) for word in container["args"]], SERVE)
    assert (options.number, options.host, options.port) == (1, "10.0.0.7", PORT)
    assert options.port == service["spec"]["ports"][0]["port"] == container["ports"][0]["containerPort"]
    assert container["readinessProbe"]["tcpSocket"]["port"] == container["ports"][0]["name"]
    assert options.servers <= swarm["replicas"]
    assert str(options.model) == yaml.safe_load((launch / "run.yaml").read_text())["model"]
    peers = (launch / "identities" / "peers.txt").read_text().split()
    namespace = yaml.safe_load((launch / "kustomization.yaml").read_text())["namespace"]
    for number, peer in enumerate(peers):
        assert peer.startswith(f"/dns4/swarm-{number}.swarm.{namespace}.svc.cluster.local/tcp/{PORT}/p2p/")
    assert len(peers) == swarm["replicas"]
    assert find(objects, "Secret", "identities")["data"].keys() == {f"swarm-{n}.key" for n in range(len(peers))}
    key = next(mount for mount in container["volumeMounts"] if mount["name"] == "identities")
    assert key["subPathExpr"] == "$(POD_NAME).key"


def test_no_pod_begins_afresh_where_another_one_was_replaced(objects: list[Object]) -> None:
    _, container = ranks_of(objects)
    assert not [word for word in container["args"] if "overwrite" in word]
    assert "overwrite" not in yaml.safe_load(find(objects, "ConfigMap", "run")["data"]["run.yaml"])


def test_the_readmes_commands_find_the_pods_of_every_kind_of_job(objects: list[Object]) -> None:
    selectors = re.findall(r"logs .*-l (\w+)=(\w+)", README)
    assert len(selectors) == 2
    template, _ = ranks_of(objects)
    assert all(template["metadata"]["labels"][name] == value for name, value in selectors)


def test_the_namespace_is_made_before_anything_in_it() -> None:
    steps = [
        README.index(words)
        for words in ("create namespace", "apply -k launch/kubernetes/common", "apply -k launch/kubernetes\n")
    ]
    assert steps == sorted(steps)


def test_the_doctor_takes_the_place_of_the_run_by_the_readmes_edit(
    objects: list[Object], launch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = next(one["kind"] for one in objects if one["kind"] in ("Job", "JobSet", "TrainJob"))
    edits = re.findall(r"-e '(s/[^']+)'", README)
    assert len(edits) == 2
    command = ["sed", "-E", *(word for edit in edits for word in ("-e", edit))]
    text = yaml.safe_dump(find(objects, kind))  # in block style, as kustomize writes it
    edited = yaml.safe_load(subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout)
    _, container = ranks_of([edited])
    given = {} if kind != "TrainJob" else {"PET_NNODES": "4", "PET_NPROC_PER_NODE": "4"}
    options = torchrun_options(container, given, monkeypatch)
    assert options.training_script == "dist_eval.doctor"
    limits = {"Job": ["backoffLimit"], "JobSet": ["maxRestarts", "backoffLimit"], "TrainJob": []}[kind]
    found = re.findall(r"(backoffLimit|maxRestarts): (\d+)", yaml.safe_dump(edited, sort_keys=False))
    assert sorted(found) == sorted((name, "0") for name in limits), "the doctor would come again and again"
    run = tmp_path / "run.yaml"
    run.write_text((launch / "run.yaml").read_text().replace("/etc/dist_eval", f"{launch}/identities"))
    words = [word.replace("/etc/dist_eval/run.yaml", str(run)) for word in options.training_script_args]
    config = parse_args(words, DOCTOR)
    assert (config.dataset, str(config.output)) == ("/models/test.csv", "/runs/evaluation")


def test_every_variable_in_a_command_line_is_set(objects: list[Object]) -> None:
    for template in pod_templates(objects).values():
        for container in template["spec"]["containers"]:
            used = re.findall(r"\$\((\w+)\)", yaml.safe_dump(container))
            assert set(used) <= {variable["name"] for variable in container["env"]}


def test_policies_know_the_exit_statuses_of_a_run(launch: Path) -> None:
    rules = find(kustomized(launch), "Job")["spec"]["podFailurePolicy"]["rules"]
    by_status = {status: rule["action"] for rule in rules for status in rule.get("onExitCodes", {}).get("values", ())}
    final = [WRONG_OPTIONS, STOPPED_BY_A_PERSON]
    assert by_status == {**dict.fromkeys(final, "FailJob"), STOPPED: "Ignore"}
    assert FAILED not in by_status, "it may be another pod's end that made a rank fail"
    jobset = find(kustomized(launch, "jobset"), "JobSet")["spec"]
    (job,) = jobset["replicatedJobs"]
    rules = job["template"]["spec"]["podFailurePolicy"]["rules"]
    assert [rule["onExitCodes"]["values"] for rule in rules if "onExitCodes" in rule] == [final]

    def action(message: str) -> str:
        """What becomes of the group once a pod failed its job with this message, as Kubernetes words it."""
        rules = jobset["failurePolicy"]["rules"]
        return next(rule["action"] for rule in rules if re.search(rule["onJobFailureMessagePatterns"][0], message))

    said = "Container ranks for pod dist-eval/evaluate-1 failed with exit code {} matching FailJob rule at index 0"
    assert [action(said.format(status)) for status in final] == ["FailJobSet"] * 2
    preempted = "Pod dist-eval/evaluate-3 has condition DisruptionTarget matching FailJob rule at index 1"
    assert action(preempted) == "RestartJobSetAndIgnoreMaxRestarts"
    for status in (STOPPED, FAILED, 20, 12, 13, 30, 128 + 2):
        with pytest.raises(StopIteration):
            action(said.format(status))
    assert all(rule["onJobFailureReasons"] == ["PodFailurePolicy"] for rule in jobset["failurePolicy"]["rules"])


def test_pods_have_the_time_that_a_stop_takes(objects: list[Object]) -> None:
    torchrun_waits = 30.0  # until it kills its ranks
    template, _ = ranks_of(objects)
    drain_timeout = EvaluationConfig(dataset="d", checkpoint="c", swarm="public").stop_grace
    assert drain_timeout < torchrun_waits < template["spec"]["terminationGracePeriodSeconds"]


def test_containers_may_do_no_more_than_they_need(objects: list[Object]) -> None:
    for template in pod_templates(objects).values():
        assert template["spec"]["securityContext"]["runAsNonRoot"] is True
        (container,) = template["spec"]["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        writable = {mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
        assert writable <= {"/runs", "/tmp", "/dev/shm"}


def test_no_file_holds_a_secret(launch: Path) -> None:
    text = "\n".join(
        path.read_text() for path in FOLDER.rglob("*") if path.is_file() and "identities" not in path.parts
    )
    assert "kind: Secret\n" not in text
    assert not re.search(r"^\s*(stringData|literals):", text, re.MULTILINE)
    ignored = (FOLDER.parents[1] / ".gitignore").read_text().splitlines()
    assert "launch/kubernetes/identities/" in ignored
    for job in KINDS_OF_JOBS:
        for template in pod_templates(kustomized(launch, job)).values():
            for variable in template["spec"]["containers"][0]["env"]:
                assert "value" not in variable or not re.search("TOKEN|KEY|SECRET|PASSWORD", variable["name"])


def test_the_container_file_runs_nothing_as_root_and_copies_what_there_is() -> None:
    lines = (FOLDER / "Containerfile").read_text().splitlines()
    user = next(line.split()[1] for line in lines if line.startswith("USER"))
    swarm = yaml.safe_load((FOLDER / "swarm" / "statefulset.yaml").read_text())["spec"]["template"]["spec"]
    context = swarm["securityContext"]
    assert user == f"{context['runAsUser']}:{context['runAsGroup']}"
    copied = [word for line in lines if line.startswith("COPY") for word in line.split()[1:-1]]
    assert copied
    assert all((FOLDER.parents[1] / name).exists() for name in copied)


def test_a_wrong_option_in_the_run_file_is_found_before_a_pod_starts(launch: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "run.yaml"
    wrong.write_text((launch / "run.yaml").read_text().replace("swarm-timeout", "swarm-timeuot"))
    with pytest.raises(ConfigError, match="swarm-timeout"):
        parse_args(["--config", str(wrong)], EVALUATION)
