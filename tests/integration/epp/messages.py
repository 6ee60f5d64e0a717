"""The protocol's messages, made from the repository's own .proto files."""

import pathlib
import subprocess
import sys
import tempfile

_ROOT = pathlib.Path(__file__).parents[3]
_FOLDER = tempfile.TemporaryDirectory(prefix="handoff-messages-")
_EXT_PROC = _ROOT / "epp/ext_proc/proto"
_SERVER = _ROOT / "epp/server/proto"
# By itself, as its own folders are those of a Python package.
_HEALTH = _SERVER / "grpc/health/v1"


def _make(root, *files):
    subprocess.run(["protoc", f"-I{root}", f"--python_out={_FOLDER.name}", *[str(path) for path in files]], check=True)


_make(_EXT_PROC, *sorted(_EXT_PROC.rglob("*.proto")))
_make(_SERVER, *sorted((_SERVER / "handoff").rglob("*.proto")))
_make(_HEALTH, _HEALTH / "health.proto")
sys.path.insert(0, _FOLDER.name)

from envoy.config.core.v3 import base_pb2 as core  # noqa: E402
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc  # noqa: E402
from handoff.epp.v1 import introspection_pb2 as introspection  # noqa: E402
import health_pb2 as health  # noqa: E402

__all__ = ["core", "ext_proc", "health", "introspection"]
