"""Everything of the outer machine that a guest is given, and where it finds it there."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.guest import ansible, environment, image, models, project, rootfs
from tests.guest.environment import REPOSITORY

MODELS = Path("/srv/models")
STANDIN = Path("/opt/vllm-standin")  # tests/standin: behaves as vLLM does, in a second
IMAGES = Path("/srv/images")  # archives of container images with that stand-in
HUB_SERVER = Path("/opt/hubserver.py")
ANSIBLE = Path("/opt/ansible")
ROLES = Path("/srv/roles")


def binds() -> dict[Path, Path]:
    """Builds what is missing; folders and files outside, each with its place in the guest."""
    with ThreadPoolExecutor(1) as pool:  # the environment alone takes longer than all the others
        environments = pool.submit(environment.binds)
        rootfs.tree()  # what the guest boots from
        others = {
            models.folder(): MODELS,
            image.archives(): IMAGES,
            project.wheelhouse(): project.WHEELHOUSE,
            ansible.folder(): ANSIBLE,
        }
        return {
            **environments.result(),
            **others,
            REPOSITORY / "packaging/ansible/roles": ROLES,
            REPOSITORY / "tests/standin": STANDIN,
            REPOSITORY / "tests/hubserver.py": HUB_SERVER,
        }
