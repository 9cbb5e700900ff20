"""Whether another stack than an endpoint's is pinned by now; pure."""

from epyc_vllm_agent.plan.stacks import release
from epyc_vllm_agent.plan.values import EndpointPlan
from epyc_vllm_agent.recipe import Recipe


def available(plan: EndpointPlan, recipe: Recipe) -> str | None:
    """What `upgrade` would move the endpoint to: an image's name, or a version of vLLM.

    None where it has what is pinned, or an image that its administrator named.
    """
    container = plan.launch.container
    if container is None:
        pinned = recipe.environment.vllm_version
        return pinned if release(pinned) > release(plan.stack.vllm) else None
    if plan.config.image is not None:
        return None
    pinned = recipe.images.of(plan.stack.name).image
    return pinned if pinned != container.image else None


def kept_image(previous: EndpointPlan | None, stack: str) -> str | None:
    """The image that an endpoint stays with although another is pinned by now: its stored plan's.

    None where its administrator named that one, or where another `stack` is needed than it has.
    """
    if previous is None or previous.launch.container is None:
        return None
    if previous.config.image is not None or previous.stack.name != stack:
        return None
    return previous.launch.container.image


def may_move(image: str, recipe: Recipe) -> bool:
    """Whether an image of this name may be another one by now: not by digest, nor where the recipe
    tells the versions in it."""
    known = (recipe.images.zentorch, recipe.images.stock)
    return "@" not in image and not any(item.image == image and item.vllm for item in known)
