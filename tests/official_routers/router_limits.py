"""What the routers themselves can't do, with the cause; `sign` must show in what came back."""

from dataclasses import dataclass


@dataclass
class Limit:
    sign: str
    cause: str


LIMITS = {
    ("vllm", "completion, two prompts"): Limit(
        "status 500",
        "It hands the blocks of the first prompt to decode for both, on which vLLM's scheduler fails an assertion and ends "
        "(vllm-project/vllm#50559). The sidecar runs such a request on the decode engine alone."),
    ("sglang", "generate, two prompts"): Limit(
        "status 422",
        "Its model of /generate has one text only (`text: Option<String>`); a list never gets to an engine. Completions with "
        "several prompts do."),
}
