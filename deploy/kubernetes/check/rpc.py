"""gRPC clients of the servers for health and reflection, and a test collector for their
telemetry."""

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from processes import TIMEOUT_S

# Read when grpc is loaded: no log of unreachable servers, and no fork support.
os.environ["GRPC_VERBOSITY"] = "NONE"
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

import grpc  # noqa: E402
from grpc_health.v1 import health_pb2, health_pb2_grpc  # noqa: E402
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc  # noqa: E402

# The prefix of the services that every server has.
COMMON = "grpc."


class Channel:
    """A client of a server, with TLS and certificates like the server's if it has them."""

    def __init__(self, port, files=None, host="127.0.0.1"):
        self._address = f"{host}:{port}"
        self._files = files

    def is_serving(self, service, timeout_s):
        """Whether the health status of a name is SERVING; None if the check times out. Uses a new
        connection, as the kubelet does, so it also shows whether the server accepts connections."""
        request = health_pb2.HealthCheckRequest(service=service)
        with self._connect() as channel:
            try:
                answer = health_pb2_grpc.HealthStub(channel).Check(request, timeout=timeout_s)
            except grpc.RpcError as error:
                return None if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED else False
        return answer.status == health_pb2.HealthCheckResponse.SERVING

    def services(self):
        """The names of the services that reflection lists, except those that every server has."""
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        with self._connect() as channel:
            stub = reflection_pb2_grpc.ServerReflectionStub(channel)
            answer = next(stub.ServerReflectionInfo(iter([request]), timeout=TIMEOUT_S))
        names = {one.name for one in answer.list_services_response.service}
        return {name for name in names if not name.startswith(COMMON)}

    def _connect(self):
        # Does not reuse an earlier connection, which may have failed.
        options = [("grpc.use_local_subchannel_pool", 1)]
        if self._files is None:
            return grpc.insecure_channel(self._address, options)
        # Certificates of servers are valid for this address, whatever it is in a container.
        options.append(("grpc.ssl_target_name_override", "127.0.0.1"))
        credentials = grpc.ssl_channel_credentials(*(
            self._files[name].encode() if name in self._files else None
            for name in ("ca.crt", "tls.key", "tls.crt")
        ))
        return grpc.secure_channel(self._address, credentials, options)


@contextmanager
def telemetry():
    """Receives telemetry. Yields the port, and the list of the received requests."""
    received = []

    class Anything(grpc.GenericRpcHandler):
        def service(self, details):
            if not details.method.startswith("/opentelemetry.proto.collector."):
                return None
            def receive(request, _context):
                received.append(request)
                return b""
            return grpc.unary_unary_rpc_method_handler(receive)

    server = grpc.server(ThreadPoolExecutor(4), handlers=[Anything()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield port, received
    finally:
        server.stop(None).wait()
