"""The protocol's messages, made from the repository's own .proto files."""

import pathlib
import subprocess
import sys
import tempfile

_ROOT = pathlib.Path(__file__).parents[3]
_FOLDER = tempfile.TemporaryDirectory(prefix="handoff-messages-")
_EXT_PROC = _ROOT / "epp/ext_proc/proto"
_SERVER = _ROOT / "epp/server/proto"
_HERE = pathlib.Path(__file__).parent

subprocess.run(["protoc", f"-I{_EXT_PROC}", f"-I{_SERVER}", f"-I{_HERE}", f"--python_out={_FOLDER.name}",
                *[str(path) for path in sorted(_EXT_PROC.rglob("*.proto"))],
                *[str(path) for path in sorted(_SERVER.rglob("*.proto"))], str(_HERE / "health.proto")], check=True)
sys.path.insert(0, _FOLDER.name)

from envoy.config.core.v3 import base_pb2 as core  # noqa: E402
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc  # noqa: E402
from handoff.epp.v1 import introspection_pb2 as introspection  # noqa: E402
import health_pb2 as health  # noqa: E402

__all__ = ["core", "ext_proc", "health", "introspection"]
