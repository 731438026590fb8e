"""What speaks gRPC with the servers: who asks what they serve and whether they are well, and who
takes their telemetry."""

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from processes import PATIENCE_S

# Read when grpc is loaded. It need not say whom it cannot reach, nor look after processes that are
# started beside it.
os.environ["GRPC_VERBOSITY"] = "NONE"
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

import grpc  # noqa: E402
from grpc_health.v1 import health_pb2, health_pb2_grpc  # noqa: E402
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc  # noqa: E402

# What every server has beside its own service.
COMMON = "grpc."


class Channel:
    """A way to ask a server, over TLS with certificates like its own."""

    def __init__(self, port, files=None):
        self._address = f"127.0.0.1:{port}"
        self._files = files

    def is_serving(self, service, timeout_s):
        """Whether the health service says SERVING of a name; None if it does not answer in time. Asked
        over a connection of its own, as the kubelet does: only so it is known whether connections are
        still taken."""
        request = health_pb2.HealthCheckRequest(service=service)
        with self._connect() as channel:
            try:
                answer = health_pb2_grpc.HealthStub(channel).Check(request, timeout=timeout_s)
            except grpc.RpcError as error:
                return None if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED else False
        return answer.status == health_pb2.HealthCheckResponse.SERVING

    def services(self):
        """The names of the services that reflection lists, but for those that every server has."""
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        with self._connect() as channel:
            stub = reflection_pb2_grpc.ServerReflectionStub(channel)
            answer = next(stub.ServerReflectionInfo(iter([request]), timeout=PATIENCE_S))
        names = {one.name for one in answer.list_services_response.service}
        return {name for name in names if not name.startswith(COMMON)}

    def _connect(self):
        # Not shared with what was asked before, which may have failed.
        options = [("grpc.use_local_subchannel_pool", 1)]
        if self._files is None:
            return grpc.insecure_channel(self._address, options)
        authority, key, certificate = (
            self._files[name].encode() for name in ("ca.crt", "tls.key", "tls.crt")
        )
        credentials = grpc.ssl_channel_credentials(authority, key, certificate)
        return grpc.secure_channel(self._address, credentials, options)


@contextmanager
def telemetry(port):
    """Takes whatever telemetry comes, and yields the list of what came."""
    came = []

    class Anything(grpc.GenericRpcHandler):
        def service(self, details):
            if not details.method.startswith("/opentelemetry.proto.collector."):
                return None
            def take(request, _context):
                came.append(request)
                return b""
            return grpc.unary_unary_rpc_method_handler(take)

    server = grpc.server(ThreadPoolExecutor(4), handlers=[Anything()])
    server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    try:
        yield came
    finally:
        server.stop(None).wait()
